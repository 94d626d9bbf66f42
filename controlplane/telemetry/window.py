"""The last minute of every class, as the models want it.

Legend: C classes, T steps.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from controlplane.errors import NoEngineMetrics, StaleWindow
from controlplane.telemetry.promql import CLASS_LABEL, SAMPLE_TIME, SIGNAL_LABEL, signals_query
from controlplane.telemetry.source import PrometheusSource, Series
from models.window import STEP_S, STEPS, Signal, Window


def fetch_window(
    source: PrometheusSource, task_classes: Sequence[str], *, end_unix_s: float, staleness_s: float
) -> Window:
    """The STEPS steps of STEP_S that end at the last whole second.

    Raises:
        TelemetryError: Prometheus failed.
        NoEngineMetrics: no engine metric lies in the window.
        StaleWindow: the newest sample is older than ``staleness_s``.
    """
    grid = fetch_grid(
        source, task_classes, end_unix_s=math.floor(end_unix_s), steps=STEPS, step_s=STEP_S
    )
    age_s = end_unix_s - newest_sample_unix_s(grid)
    if age_s > staleness_s:
        raise StaleWindow(age_s=age_s, limit_s=staleness_s)
    return to_window(grid, task_classes, end_unix_s=math.floor(end_unix_s), step_s=STEP_S)


Grid = dict[str, NDArray[np.float64]]
"""Signal or SAMPLE_TIME -> [C, T]; NaN is unknown."""


def fetch_grid(
    source: PrometheusSource,
    task_classes: Sequence[str],
    *,
    end_unix_s: int,
    steps: int,
    step_s: float,
) -> Grid:
    """``steps`` points, ``step_s`` apart, the last at ``end_unix_s``."""
    start_unix_s = round(end_unix_s - (steps - 1) * step_s)
    series = source.query_range(
        signals_query(step_s, source.scrape_interval_s),
        start_unix_s=start_unix_s,
        end_unix_s=end_unix_s,
        step_s=step_s,
    )
    return _grid(series, task_classes, start_unix_s=start_unix_s, steps=steps, step_s=step_s)


def newest_sample_unix_s(grid: Grid) -> float:
    """When the fleet was last scraped.

    Raises:
        NoEngineMetrics: never, as far as the grid reaches.
    """
    known = grid[SAMPLE_TIME][np.isfinite(grid[SAMPLE_TIME])]
    if known.size == 0:
        raise NoEngineMetrics("Prometheus has no metric of a Trimtab engine in this range")
    return float(known.max())


def to_window(
    grid: Grid, task_classes: Sequence[str], *, end_unix_s: float, step_s: float
) -> Window:
    """The grid's signals."""
    signals = {signal: grid[signal] for signal in Signal}
    return Window(float(end_unix_s), step_s, tuple(task_classes), signals)


def _grid(
    series: Iterable[Series],
    task_classes: Sequence[str],
    *,
    start_unix_s: float,
    steps: int,
    step_s: float,
) -> Grid:
    """Sort points into their cells; what Prometheus does not know stays NaN."""
    rows = {name: row for row, name in enumerate(task_classes)}
    grid = {name: np.full((len(rows), steps), np.nan) for name in (*Signal, SAMPLE_TIME)}
    for one in series:
        cells = grid.get(one.labels.get(SIGNAL_LABEL, ""))
        row = rows.get(one.labels.get(CLASS_LABEL, ""))
        if cells is None or row is None:
            continue
        for unix_s, value in one.points:
            step = round((unix_s - start_unix_s) / step_s)
            if 0 <= step < steps and math.isfinite(value):
                cells[row, step] = value
    return grid
