"""What was measured: one window of per-class signals.

Shapes: C classes, T steps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

WINDOW_S = 60.0
STEP_S = 5.0
STEPS = round(WINDOW_S / STEP_S)
LARGEST = 1e15
"""No engine measures more of anything; sums and products of what is below stay finite."""


class Signal(StrEnum):
    """A per-class measurement; the unit is in the name."""

    ARRIVALS_PER_S = "arrivals_per_s"
    FINISHED_PER_S = "finished_per_s"
    VIOLATIONS_PER_S = "violations_per_s"
    """Requests that finished late or failed."""
    PROMPT_TOKENS_PER_S = "prompt_tokens_per_s"
    GENERATION_TOKENS_PER_S = "generation_tokens_per_s"
    TTFT_MEAN_S = "ttft_mean_s"
    """Mean over the requests whose first token came in the step; NaN when there was none."""
    WAITING = "waiting"
    WAITING_PAST_SLO = "waiting_past_slo"
    OLDEST_WAIT_S = "oldest_wait_s"


@dataclass(frozen=True, slots=True)
class Window:
    """Per-class signals on an even grid, the newest step last.

    Attributes:
        end_unix_s: when the last step ends.
        step_s: length of a step.
        task_classes: names, in the order of the first axis.
        signals: each [C, T]; NaN is "unknown", which is not 0.

    Raises:
        ValueError: a signal has another shape, or one is missing.
    """

    end_unix_s: float
    step_s: float
    task_classes: tuple[str, ...]
    signals: Mapping[Signal, NDArray[np.float64]]

    def __post_init__(self) -> None:
        """Refuse ragged or incomplete signals."""
        missing = [signal.value for signal in Signal if signal not in self.signals]
        if missing:
            raise ValueError(f"the window lacks {', '.join(missing)}")
        shapes = {values.shape for values in self.signals.values()}
        if len(shapes) != 1 or next(iter(shapes))[0] != len(self.task_classes):
            raise ValueError(f"signals must all be [{len(self.task_classes)}, T], got {shapes}")

    @property
    def steps(self) -> int:
        """Number of steps T."""
        steps: int = next(iter(self.signals.values())).shape[1]
        return steps

    def between(self, first: int, stop: int) -> "Window":
        """The window of the steps ``first`` to ``stop - 1``."""
        return Window(
            end_unix_s=self.end_unix_s - (self.steps - stop) * self.step_s,
            step_s=self.step_s,
            task_classes=self.task_classes,
            signals={signal: values[:, first:stop] for signal, values in self.signals.items()},
        )

    def require_classes(self, names: Sequence[str]) -> None:
        """Refuse a descriptor list that is not this window's, row by row.

        Raises:
            ValueError: names or their order differ.
        """
        if tuple(names) != self.task_classes:
            raise ValueError(f"the window holds {self.task_classes}, not {tuple(names)}")


def known(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Where a signal was measured. All signals are in [0, LARGEST] when they were."""
    measured: NDArray[np.bool_] = (values >= 0) & (values <= LARGEST)  # False for NaN
    return measured
