"""Hours or days of every class, for training.

Legend: C classes, T steps.
"""

import math
from collections.abc import Sequence

import numpy as np

from controlplane.telemetry.source import PrometheusSource
from controlplane.telemetry.window import Grid, fetch_grid, newest_sample_unix_s, to_window
from models.window import Window

MAX_POINTS = 11_000
"""Prometheus refuses more points per series in one range query."""


def fetch_history(
    source: PrometheusSource,
    task_classes: Sequence[str],
    *,
    start_unix_s: float,
    end_unix_s: float,
    step_s: float,
) -> Window:
    """One long window whose T steps fill the range and end with it.

    Raises:
        ValueError: the step is no whole number of seconds, or longer than the range.
        TelemetryError: Prometheus failed.
        NoEngineMetrics: no engine metric lies in the range.
    """
    end = math.floor(end_unix_s)
    steps = math.floor((end - start_unix_s) / step_s) if step_s > 0 else 0
    if steps < 1 or step_s != math.floor(step_s):
        raise ValueError(
            f"a range of {end - start_unix_s:g} s can't be cut into steps of {step_s:g} s"
        )
    grid = _joined(
        [
            fetch_grid(
                source,
                task_classes,
                end_unix_s=round(end - later * step_s),
                steps=min(MAX_POINTS, steps - later),
                step_s=step_s,
            )
            for later in reversed(range(0, steps, MAX_POINTS))
        ]
    )
    newest_sample_unix_s(grid)
    return to_window(grid, task_classes, end_unix_s=end, step_s=step_s)


def _joined(chunks: list[Grid]) -> Grid:
    """Chunks [C, t] in time order, as one [C, T]."""
    return {name: np.concatenate([chunk[name] for chunk in chunks], axis=1) for name in chunks[0]}
