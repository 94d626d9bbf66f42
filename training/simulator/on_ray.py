"""Candidates evaluated on a Ray cluster: needs the extra ``trimtab[ray]``."""

import numpy as np
import ray

from training.simulator.model import Fleet
from training.simulator.rollout import Run, evaluate
from training.simulator.scene import Float
from training.simulator.state import State
from training.simulator.workload import Workload


def evaluate_on_ray(
    fleet: Fleet, workload: Workload, candidates: Float, state: State, *, tasks: int
) -> list[Run]:
    """What ``rollout.evaluate`` gives, from so many Ray tasks; all workers need Trimtab.

    Call ``ray.init`` before. Workload and state travel once to each machine.

    Args:
        fleet: as in ``evaluate``.
        workload: likewise.
        candidates: [K, T, C] weights.
        state: where all begin.
        tasks: at least 1; each evaluates its part of the candidates on one core.

    Raises:
        ValueError: as in ``evaluate``, or ``tasks`` is not positive.
        ray.exceptions.RayError: the cluster failed.
    """
    task = ray.remote(num_cpus=1)(evaluate)
    shared = [ray.put(workload), ray.put(state)]
    parts = [
        task.remote(fleet, shared[0], part, shared[1])
        for part in np.array_split(candidates, tasks)
        if len(part)
    ]
    return [run for part in ray.get(parts) for run in part]
