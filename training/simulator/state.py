"""The state of a simulated fleet, as arrays of records.

Shapes: N requests of the workload, E engines, C classes, S run slots. Requests are known by
their index in the workload; -1: none. NaN: not yet.
"""

from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from training.simulator.model import Fleet

Records = np.recarray[Any, np.dtype[np.void]]

PREEMPTED, IN_TIME, LATE = range(3)
"""The lanes of a class's queue, as in the data plane; each is a linked list."""

PRIOR_GENERATION_TOKENS = 64.0
PRIOR_REQUESTS = 4.0
"""The data plane's, of a class's mean generation."""

_REQUEST = np.dtype(
    [
        ("behind", np.int64),  # the next one in its lane
        ("place", np.int64),  # among the waiting of its engine, smaller is earlier
        ("generated", np.int64),  # tokens
        ("computed", np.int64),  # tokens in its KV blocks
        ("target", np.int64),  # tokens known at its last admission; beyond, it decodes
        ("blocks", np.int64),
        ("preemptions", np.int64),
        ("displaced", np.int64),  # preemptions by weight
        ("admission", np.int64),  # among all of its engine, the last
        ("admitted_s", np.float64),
        ("dispatched_s", np.float64),  # when it first got onto the engine
        ("first_token_s", np.float64),
        ("finished_s", np.float64),
        ("charged_tokens", np.float64),  # work that its class was charged under wfq
    ]
)
_ENGINE = np.dtype(
    [
        ("ready_s", np.float64),  # when the step in flight ends; infinity: idle
        ("free_blocks", np.int64),
        ("steps", np.int64),  # begun
        ("running", np.int64),
        ("waiting", np.int64),
        ("admissions", np.int64),
        ("first_place", np.int64),
        ("last_place", np.int64),
        ("fair_tag", np.float64),  # at which service is being given under wfq
        ("credit_s", np.float64),  # what capped steps may cost
        ("credit_per_s", np.float64),  # how it grows
        ("credited_s", np.float64),  # until when it has grown
        ("paces_s", np.float64),  # when the paces of its decodes are looked at again
        ("look_s", np.float64),  # when preemption by weight is considered again
        ("recompute_tokens", np.float64),  # what it may spend
        ("refilled_s", np.float64),  # until when that has grown; NaN: not yet
    ]
)
_QUEUE = np.dtype(
    [
        ("waiting", np.int64),
        ("prompt_tokens", np.int64),  # of those that wait
        ("past_slo", np.int64),  # in the late lane
        ("running", np.int64),
        ("generation_tokens", np.float64),  # what a request is believed to generate
        ("ended", np.float64),  # requests that this mean counts for
        ("weight", np.float64),  # in force in the step in flight
        ("due_s", np.float64),  # of the decode furthest behind, when its latest token was due
        ("finish_tag", np.float64),  # service under wfq, in tokens per unit of weight
    ]
)
_LANE = np.dtype([("first", np.int64), ("last", np.int64)])
_SLOT = np.dtype(
    [
        ("request", np.int64),
        ("allowed", np.int64),  # prompt tokens in the step being planned
        ("victim", np.int64),  # room for those to be preempted by weight
        ("sampled", np.int64),  # 1: the step in flight gives it a token
    ]
)
_CURSOR = np.dtype(
    [
        ("tick", np.int64),  # ticks done
        ("arrival", np.int64),  # the next request to come
        ("engine", np.int64),  # the balancer's next in turn
    ]
)


class State(NamedTuple):
    """A fleet at the beginning of a tick, and what became of the requests so far.

    Attributes:
        requests: [N].
        engines: [E].
        queues: [E, C].
        lanes: [E, C, 3] linked through ``requests``.
        slots: [E, S] in vLLM's order, the first ``running`` of each engine.
        cursor: [1].
    """

    requests: Records
    engines: Records
    queues: Records
    lanes: Records
    slots: Records
    cursor: Records

    @classmethod
    def initial(cls, fleet: Fleet, *, requests: int, classes: int) -> Self:
        """Nothing has arrived."""
        count = fleet.engines
        state = cls(
            requests=_records(_REQUEST, requests),
            engines=_records(_ENGINE, count),
            queues=_records(_QUEUE, count, classes),
            lanes=_records(_LANE, count, classes, 3),
            slots=_records(_SLOT, count, fleet.engine.slots),
            cursor=_records(_CURSOR, 1),
        )
        for field in ("dispatched_s", "first_token_s", "finished_s"):
            state.requests[field] = np.nan
        state.engines["ready_s"] = np.inf
        state.engines["refilled_s"] = np.nan
        state.queues["due_s"] = np.inf
        state.engines["free_blocks"] = fleet.engine.kv_blocks
        state.queues["generation_tokens"] = PRIOR_GENERATION_TOKENS
        state.queues["ended"] = PRIOR_REQUESTS
        state.lanes["first"] = state.lanes["last"] = -1
        return state

    @property
    def ticks(self) -> int:
        """How many are done."""
        return int(self.cursor["tick"][0])

    @property
    def live(self) -> int:
        """Requests that have arrived and not ended."""
        return int(self.engines["waiting"].sum() + self.engines["running"].sum())

    def branch(self) -> Self:
        """A copy: what happens to the one is nothing to the other."""
        return type(self)(*(array.copy() for array in self))

    def among(self, first: int, stop: int) -> Self:
        """A branch that knows only these requests; all live ones must be among them."""
        requests = self.requests[first:stop].view(np.recarray)
        own = self._replace(requests=requests).branch()
        for indices in (
            own.requests["behind"],
            own.lanes["first"],
            own.lanes["last"],
            own.slots["request"],
            own.cursor["arrival"],
        ):
            indices[indices >= 0] -= first
        return own

    def save(self, path: Path) -> None:
        """Write as NumPy's .npz."""
        with path.open("wb") as file:
            np.savez(file, **self._asdict())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what ``save`` wrote.

        Raises:
            OSError: the file cannot be read.
            KeyError: it holds no state.
            ValueError: it holds a state of another version.
        """
        with np.load(path) as arrays:
            state = cls(*(arrays[name].view(np.recarray) for name in cls._fields))
        layouts = (_REQUEST, _ENGINE, _QUEUE, _LANE, _SLOT, _CURSOR)
        for array, layout in zip(state, layouts, strict=True):
            if array.dtype.descr != layout.descr:
                raise ValueError(f"{path} holds a state of another version")
        return state


def _records(layout: np.dtype[np.void], *shape: int) -> Records:
    return np.zeros(shape, dtype=layout).view(np.recarray)
