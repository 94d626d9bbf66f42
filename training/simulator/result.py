"""What became of each request, as its client saw it.

Shapes: N requests of a run's workload.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from training.simulator.model import EngineModel
from training.simulator.rollout import Run
from training.simulator.scene import Float


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes:
    """Arrays [N]; NaN where it has not come to that.

    Attributes:
        queue_s: arrival to first dispatch.
        ttft_s: arrival to first token, with what clients see on top.
        tpot_s: mean time per token after the first; NaN also where there is none.
        e2e_s: arrival to last token, with what clients see on top.
        finished: whether the last token came.
        met: whether it did, and within every objective of the class.
        preemptions: how often it was sent back to the queue.
    """

    queue_s: Float
    ttft_s: Float
    tpot_s: Float
    e2e_s: Float
    finished: NDArray[np.bool_]
    met: NDArray[np.bool_]
    preemptions: NDArray[np.int64]

    @classmethod
    def of(cls, run: Run, engine: EngineModel) -> Self:
        """The outcomes of a run on such engines."""
        requests, workload = run.state.requests, run.workload
        arrived_s, overhead_s = workload.arrival_s, engine.client_overhead_s
        first_s, last_s = requests["first_token_s"], requests["finished_s"]
        after_first = np.where(requests["generated"] > 1, requests["generated"] - 1, np.nan)
        ttft_s = first_s - arrived_s + overhead_s
        tpot_s = (last_s - first_s) / after_first
        e2e_s = last_s - arrived_s + overhead_s
        slos = [one.slo for one in workload.classes]
        seen = (
            (ttft_s, [slo.ttft_s for slo in slos]),
            (tpot_s, [slo.tpot_s for slo in slos]),
            (e2e_s, [slo.e2e_s for slo in slos]),
        )
        finished = ~np.isnan(last_s)
        missed = [_above(seen_s, bounds, workload.class_index) for seen_s, bounds in seen]
        return cls(
            queue_s=requests["dispatched_s"] - arrived_s,
            ttft_s=ttft_s,
            tpot_s=tpot_s,
            e2e_s=e2e_s,
            finished=finished,
            met=finished & ~np.logical_or.reduce(missed),
            preemptions=requests["preemptions"].copy(),
        )


def _above(
    seen_s: Float, bounds_s: Sequence[float | None], class_index: NDArray[np.int32]
) -> NDArray[np.bool_]:
    """Where an objective was missed: [N]; False for NaN and where there is none."""
    limits_s = np.array([np.inf if one is None else one for one in bounds_s])
    above: NDArray[np.bool_] = seen_s > limits_s[class_index]
    return above
