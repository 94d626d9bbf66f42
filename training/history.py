"""The metric history that a model learns from."""

import math
from collections.abc import Sequence

from controlplane.telemetry.history import fetch_history
from controlplane.telemetry.source import PrometheusSource
from models.classes import TaskClass
from models.window import STEP_S, Window


def pull_history(
    source: PrometheusSource, classes: Sequence[TaskClass], *, since_s: float, end_unix_s: float
) -> Window:
    """The last ``since_s`` seconds up to ``end_unix_s``, in the steps the network reads.

    Raises:
        controlplane.errors.TelemetryError: Prometheus failed, or knows no engine.
        ValueError: ``since_s`` is shorter than a step.
    """
    end = math.floor(end_unix_s)  # Prometheus is asked for whole seconds
    return fetch_history(
        source,
        [task_class.name for task_class in classes],
        start_unix_s=end - since_s,
        end_unix_s=end,
        step_s=STEP_S,
    )
