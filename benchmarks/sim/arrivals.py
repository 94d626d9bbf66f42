"""A simulator's workload as the plan of a client, and back."""

from collections.abc import Sequence

import numpy as np

from benchmarks.plan import Arrival
from models.classes import TaskClass
from training.simulator.workload import Workload


def as_arrivals(workload: Workload) -> tuple[Arrival, ...]:
    """Each request with its class's name."""
    names = [kind.name for kind in workload.classes]
    columns = zip(
        workload.arrival_s.tolist(),
        workload.class_index.tolist(),
        workload.prompt_tokens.tolist(),
        workload.output_tokens.tolist(),
        strict=True,
    )
    return tuple(Arrival(at_s, names[index], *tokens) for at_s, index, *tokens in columns)


def as_workload(plan: Sequence[Arrival], classes: Sequence[TaskClass]) -> Workload:
    """The plan's requests by arrival.

    Raises:
        ValueError: a request is of none of the classes.
    """
    names = [kind.name for kind in classes]
    return Workload.in_order(
        arrival_s=np.array([arrival.at_s for arrival in plan], dtype=np.float64),
        class_index=np.array([names.index(arrival.task_class) for arrival in plan], dtype=np.int32),
        prompt_tokens=np.array([arrival.prompt_tokens for arrival in plan], dtype=np.int32),
        output_tokens=np.array([arrival.output_tokens for arrival in plan], dtype=np.int32),
        classes=classes,
    )
