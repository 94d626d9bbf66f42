"""Windows and classes for the tests of the models package."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from hypothesis import strategies as st

from models.classes import LatePolicy, Slo, TaskClass
from models.window import STEP_S, STEPS, Signal, Window

Measured: TypeAlias = tuple[Window, tuple[TaskClass, ...]]

VIP = TaskClass("vip", Slo(ttft_s=1.0), value=8.0)
BATCH = TaskClass("batch", Slo(ttft_s=4.0), value=1.0, late=LatePolicy.DEMOTE)


def window(
    classes: Sequence[TaskClass],
    signals: Mapping[Signal, object] | None = None,
    *,
    default: float = 0.0,
    steps: int = STEPS,
) -> Window:
    """Each signal given as anything that broadcasts to [C, T]; the others are ``default``."""
    shape = (len(classes), steps)
    filled = {signal: np.full(shape, default) for signal in Signal}
    for signal, values in (signals or {}).items():
        filled[signal] = np.array(np.broadcast_to(np.asarray(values, dtype=float), shape))
    return Window(
        end_unix_s=1_000.0,
        step_s=STEP_S,
        task_classes=tuple(task_class.name for task_class in classes),
        signals=filled,
    )


def reordered(original: Window, order: Sequence[int]) -> Window:
    """The same window with its classes in another order."""
    return Window(
        end_unix_s=original.end_unix_s,
        step_s=original.step_s,
        task_classes=tuple(original.task_classes[index] for index in order),
        signals={signal: values[list(order)] for signal, values in original.signals.items()},
    )


@st.composite
def measured_windows(draw: st.DrawFn, *, min_classes: int = 1) -> Measured:
    """Any classes; traffic of any size, with gaps, idle steps and nonsense in it."""
    count = draw(st.integers(min_classes, 5))
    classes = tuple(
        TaskClass(
            f"class-{index}",
            Slo(ttft_s=draw(st.floats(1e-2, 1e3))),
            value=draw(st.floats(1e-3, 1e3)),
            late=draw(st.sampled_from(LatePolicy)),
        )
        for index in range(count)
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale = draw(st.sampled_from([0.0, 1e-3, 1.0, 1e3, 1e9]))
    strange = draw(st.sampled_from([np.nan, np.inf, -1.0, 1e200, 1e308]))
    strange_ratio = draw(st.sampled_from([0.0, 0.3, 1.0]))
    signals = {}
    for signal in Signal:
        values = rng.gamma(0.5, scale, (count, STEPS)) if scale else np.zeros((count, STEPS))
        signals[signal] = np.where(rng.random(values.shape) < strange_ratio, strange, values)
    return window(classes, signals), classes
