"""What could come after a state: the same past, and other requests from then on.

Shapes: N requests.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from training.simulator.model import Fleet
from training.simulator.scenario import Scenario
from training.simulator.state import State
from training.simulator.workload import Workload


@dataclass(frozen=True, slots=True, eq=False)
class Future:
    """A state, and the requests that are live in it or come after it.

    Attributes:
        fails: [N] whether a request gets an error in place of its answer.
    """

    workload: Workload
    fails: NDArray[np.bool_]
    state: State


def branch_into(
    scenario: Scenario, state: State, other: Scenario, fleet: Fleet, *, until_s: float
) -> Future:
    """The state's live requests, and those that the other scenario has from its time on.

    Args:
        scenario: that the state is of.
        state: at the beginning of a tick.
        other: the same classes, with other requests.
        fleet: the state's.
        until_s: no requests are needed that come later.
    """
    arrived = int(state.cursor["arrival"][0])
    live = np.flatnonzero(np.isnan(state.requests["finished_s"][:arrived]))
    first = int(live[0]) if len(live) else arrived
    now_s = state.ticks * fleet.tick_s
    start, stop = np.searchsorted(other.workload.arrival_s, (now_s, until_s))
    past, coming = slice(first, arrived), slice(int(start), int(stop))
    own = state.among(first, arrived)
    fresh = State.initial(
        fleet, requests=coming.stop - coming.start, classes=len(scenario.workload.classes)
    )
    requests = np.concatenate([own.requests, fresh.requests]).view(np.recarray)
    return Future(
        workload=_joined(scenario.workload, past, other.workload, coming),
        fails=np.concatenate([scenario.fails[past], other.fails[coming]]),
        state=own._replace(requests=requests),
    )


def _joined(one: Workload, past: slice, other: Workload, coming: slice) -> Workload:
    return Workload(
        arrival_s=np.concatenate([one.arrival_s[past], other.arrival_s[coming]]),
        class_index=np.concatenate([one.class_index[past], other.class_index[coming]]),
        prompt_tokens=np.concatenate([one.prompt_tokens[past], other.prompt_tokens[coming]]),
        output_tokens=np.concatenate([one.output_tokens[past], other.output_tokens[coming]]),
        classes=one.classes,
    )
