"""From metric history to a registered challenger."""

from collections.abc import Sequence
from dataclasses import asdict

from controlplane.telemetry.source import PrometheusSource
from models.bundle import Bundle, Provenance
from models.classes import TaskClass
from models.familiarity import FeatureRanges
from models.registry import CHALLENGER, Registry, RunRecord
from models.window import Window
from training.dataset import build_examples
from training.fit import FitOptions, Fitted, fit
from training.history import pull_history


def retrain(
    source: PrometheusSource,
    classes: Sequence[TaskClass],
    registry: Registry,
    *,
    since_s: float,
    end_unix_s: float,
    options: FitOptions,
    progress: bool = False,
) -> str:
    """Learn from the last ``since_s`` seconds; returns the new ``@challenger``'s version.

    Nothing serves it before it is promoted.

    Raises:
        controlplane.errors.TelemetryError: Prometheus failed, or knows no engine.
        NotEnoughHistory: too few steps with traffic.
        FitDiverged: the loss was no number in any epoch.
        models.errors.RegistryUnavailable: the result could not be stored.
    """
    history = pull_history(source, classes, since_s=since_s, end_unix_s=end_unix_s)
    return learn(history, classes, registry, options=options, progress=progress)


def learn(
    history: Window,
    classes: Sequence[TaskClass],
    registry: Registry,
    *,
    options: FitOptions,
    progress: bool = False,
) -> str:
    """As `retrain`, from a history at hand."""
    examples = build_examples(history, classes, min_examples=options.min_examples)
    fitted = fit(examples, options, progress=progress)
    provenance = Provenance(
        origin="violation-forecast",
        seed=options.seed,
        data_start_unix_s=history.end_unix_s - history.steps * history.step_s,
        data_end_unix_s=history.end_unix_s,
    )
    bundle = Bundle(
        network=fitted.network,
        provenance=provenance,
        ranges=FeatureRanges.of(examples.features),
    )
    return registry.register(bundle, alias=CHALLENGER, run=_record(fitted, classes, options))


def _record(fitted: Fitted, classes: Sequence[TaskClass], options: FitOptions) -> RunRecord:
    return RunRecord(
        name="violation-forecast",
        params={f"fit.{name}": value for name, value in asdict(options).items()},
        metrics=fitted.metrics,
        epochs=fitted.epochs,
        tags={
            "trimtab.classes": ", ".join(task_class.name for task_class in classes),
            "trimtab.interrupted": str(fitted.interrupted).lower(),
        },
    )
