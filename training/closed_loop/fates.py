"""What the loss wants to know of simulated requests.

Shapes: N requests, R of them asked about.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.loss import Fates
from training.simulator.state import Records
from training.simulator.workload import Workload


def fates_of(
    workload: Workload,
    requests: Records,
    rows: NDArray[np.integer[Any]],
    lost: NDArray[np.bool_],
    *,
    now_s: float,
    overhead_s: float = 0.0,
) -> Fates:
    """Of some requests, all of which have arrived.

    Args:
        workload: the requests.
        requests: [N] the same ones' records in a state.
        rows: [R] which of them.
        lost: [R] whether they are.
        now_s: the time of the state.
        overhead_s: what clients see on top of the engine's TTFT and e2e.
    """
    arrived_s = workload.arrival_s[rows]  # [R]
    own = requests[rows]  # [R]
    first_s, last_s, tokens = own["first_token_s"], own["finished_s"], own["generated"]
    return Fates(
        class_index=workload.class_index[rows],
        age_s=now_s - arrived_s,
        ttft_s=first_s - arrived_s + overhead_s,
        tpot_s=(last_s - first_s) / np.where(tokens > 1, tokens - 1, np.nan),
        e2e_s=last_s - arrived_s + overhead_s,
        lost=lost,
    )
