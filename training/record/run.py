"""A retraining as the record that the registry keeps of it.

Names are the same for every version, so that any two can be compared: ``*_loss`` on the
hold-out, ``regime.<regime>.<policy>_loss`` and ``regime.<regime>.gap_closed_ratio`` on the
regimes, ``gate.<gate>.passed`` for the gates, whose own figures are in child runs.

Shapes: C classes, N examples or instants.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest

import numpy as np
import torch
from numpy.typing import NDArray

from models.bundle import Bundle
from models.classes import TaskClass
from models.succession import GATES_TAG
from models.verdicts import Verdict, verdicts_to_json
from models.versions import RunRecord
from models.window import STEPS, Window
from training.fit import FitOptions, Fitted
from training.objective import Objective
from training.record import plots
from training.record.lineage import Lineage, dataset_record
from training.record.results import MODEL, Judgement, RegimeLosses
from training.rehearsal.learning import Rehearsed

NAME = "retraining"
_REFERENCES = ("champion_loss", "persistence_loss", "constant_loss")
_MOST_INSTANTS = 360
"""Columns of the heat map of weights."""


@dataclass(frozen=True, slots=True, eq=False)
class Retraining:
    """What a retraining was, and what it gave.

    Attributes:
        options: that the fit was done with.
        rehearsed: None: nothing was, only the forecast is learned.
    """

    bundle: Bundle
    fitted: Fitted
    history: Window
    classes: Sequence[TaskClass]
    options: FitOptions
    judgement: Judgement
    lineage: Lineage
    rehearsed: Rehearsed | None = None

    @property
    def objective(self) -> Objective:
        """What the network was to get better at."""
        return Objective.VIOLATION if self.rehearsed is None else Objective.REGRET


def run_record(done: Retraining) -> RunRecord:
    """All that is to be remembered of a retraining."""
    verdicts = done.judgement.verdicts
    predicted, realised = _forecasts(done.fitted)
    return RunRecord(
        name=NAME,
        params={
            "start": _start(done.lineage),
            "objective": done.objective.value,
            **{f"fit.{name}": value for name, value in asdict(done.options).items()},
        },
        metrics={
            **done.fitted.metrics,
            **({} if done.rehearsed is None else {"holdout_regret": done.rehearsed.regret}),
            "calibration_error": plots.calibration_error(predicted, realised),
            **_regime_metrics(done.judgement.regimes),
            **{f"gate.{one.name}.passed": float(one.passed) for one in verdicts},
        },
        epochs=_epochs(done),
        tags=_tags(done),
        description=_description(done),
        files={**_pictures(done), "plots/reliability.png": plots.reliability(predicted, realised)},
        dataset=dataset_record(done.history, done.lineage),
        children=[verdict_record(verdict) for verdict in verdicts],
    )


def _epochs(done: Retraining) -> list[Mapping[str, float]]:
    """Of both fits side by side; the shorter one ends earlier."""
    nothing: Mapping[str, float] = {}
    rehearsed = () if done.rehearsed is None else done.rehearsed.epochs
    both = zip_longest(done.fitted.epochs, rehearsed, fillvalue=nothing)
    return [{**forecast, **steering} for forecast, steering in both]


def verdict_record(verdict: Verdict) -> RunRecord:
    """A gate's verdict as a child run."""
    return RunRecord(
        name=f"gate: {verdict.name}",
        metrics={**verdict.figures, "passed": float(verdict.passed)},
        tags={"trimtab.gate": verdict.name, "trimtab.reason": verdict.reason},
        passed=verdict.passed,
    )


def _start(lineage: Lineage) -> str:
    champion = lineage.champion_version
    return "fresh" if champion is None else f"version {champion}"


def _tags(done: Retraining) -> dict[str, str]:
    failed = [verdict.name for verdict in done.judgement.verdicts if not verdict.passed]
    optional = {
        "trimtab.failed_gates": ", ".join(failed) or None,
        "trimtab.calibration_hash": done.lineage.calibration_hash,
        "trimtab.git_sha": done.lineage.git_sha,
        GATES_TAG: verdicts_to_json(done.judgement.verdicts) if done.judgement.verdicts else None,
    }
    return {
        "trimtab.classes": ", ".join(task_class.name for task_class in done.classes),
        "trimtab.interrupted": str(done.fitted.interrupted).lower(),
        "trimtab.started_from": _start(done.lineage),
        "trimtab.gates": done.judgement.outcome,
        **{name: value for name, value in optional.items() if value is not None},
    }


def _regime_metrics(regimes: Sequence[RegimeLosses]) -> dict[str, float]:
    metrics = {}
    for one in regimes:
        for policy, loss in one.loss.items():
            metrics[f"regime.{one.regime}.{policy}_loss"] = loss
        if one.gap_closed_ratio is not None:
            metrics[f"regime.{one.regime}.gap_closed_ratio"] = one.gap_closed_ratio
    return metrics


def _forecasts(fitted: Fitted) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Predicted and realised violation fractions of the hold-out, each [N * C] less the unknown."""
    held_out = fitted.held_out
    with torch.inference_mode():
        logits = fitted.network.logits(torch.from_numpy(held_out.features))  # [N, C]
    predicted = torch.sigmoid(logits).numpy().astype(np.float64)  # [N, C]
    return predicted[held_out.mask], held_out.target[held_out.mask].astype(np.float64)


def _pictures(done: Retraining) -> dict[str, bytes]:
    metrics, history = done.fitted.metrics, done.history
    references = {name: metrics[name] for name in _REFERENCES if name in metrics}
    stops = np.unique(np.linspace(STEPS, history.steps, _MOST_INSTANTS).astype(int))  # [N]
    first_s = (int(stops[0]) - history.steps) * history.step_s
    pictures = {
        "plots/loss.png": plots.loss_curves(done.fitted.epochs, references),
        "plots/weights.png": plots.weight_map(
            _shares(done, stops),
            history.task_classes,
            start_s=first_s,
            step_s=-first_s / len(stops),
        ),
    }
    gaps = plots.gap_closed(done.judgement.regimes)
    return pictures if gaps is None else {**pictures, "plots/gap_closed.png": gaps}


def _shares(done: Retraining, stops: NDArray[np.int64]) -> NDArray[np.float64]:
    """What the network would have published at the end of those steps: [C, N]."""
    weights = [
        done.bundle.predict(done.history.between(stop - STEPS, stop), done.classes).weights
        for stop in stops.tolist()
    ]
    columns = np.array(weights).T  # [C, N]
    shares: NDArray[np.float64] = columns / columns.sum(axis=0)
    return shares


def _description(done: Retraining) -> str:
    """What MLflow shows on the version's page."""
    metrics, judgement = done.fitted.metrics, done.judgement
    references = ", ".join(
        f"{name.removesuffix('_loss')} {metrics[name]:.4f}"
        for name in _REFERENCES
        if name in metrics
    )
    loss = f"Hold-out loss {metrics['validation_loss']:.4f} ({references})"
    lines = [f"{loss}; started {_start(done.lineage)}; gates {judgement.outcome}."]
    if judgement.verdicts:
        lines += ["", "| gate | passed | why |", "|---|---|---|"]
        lines += [
            f"| {one.name} | {'yes' if one.passed else '**no**'} | {one.reason} |"
            for one in judgement.verdicts
        ]
    if judgement.regimes:
        lines += ["", "| regime | loss | gap closed |", "|---|---|---|"]
        lines += [_regime_line(one) for one in judgement.regimes]
    return "\n".join(lines)


def _regime_line(one: RegimeLosses) -> str:
    loss, gap = one.loss.get(MODEL), one.gap_closed_ratio
    shown = ("-" if loss is None else f"{loss:.4f}", "-" if gap is None else f"{gap:.0%}")
    return f"| {one.regime} | {shown[0]} | {shown[1]} |"
