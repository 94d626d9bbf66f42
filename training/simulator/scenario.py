"""A workload with what happens around it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from training.simulator.course import Course
from training.simulator.workload import Workload


@dataclass(frozen=True, slots=True, eq=False)
class Scenario:
    """What to simulate.

    Attributes:
        duration_s: how long arrivals go on.
        step_time: factor on the time of each step of the engine. The simulator runs up to the
            end of each of the course's levels and goes on from its state with the next.
        fails: [N] whether a request of the workload gets an error in place of its answer.

    Raises:
        ValueError: ``fails`` is not one flag for each request.
    """

    name: str
    workload: Workload
    duration_s: float
    step_time: Course
    fails: NDArray[np.bool_]

    def __post_init__(self) -> None:
        """Refuse flags that do not belong to the workload."""
        if self.fails.shape != (len(self.workload),):
            raise ValueError(f"{len(self.workload)} requests need as many flags in fails")

    @classmethod
    def steady(cls, name: str, workload: Workload, duration_s: float | None = None) -> "Scenario":
        """Nothing happens around it. Args: duration_s: None: up to the last arrival."""
        last_s = float(workload.arrival_s[-1]) if len(workload) else 0.0
        return cls(
            name=name,
            workload=workload,
            duration_s=last_s if duration_s is None else duration_s,
            step_time=Course.flat(),
            fails=np.zeros(len(workload), dtype=np.bool_),
        )
