"""From metric history to a registered challenger."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import structlog

from controlplane.telemetry.source import PrometheusSource
from models.bundle import Bundle, Provenance
from models.classes import TaskClass
from models.errors import CorruptBundle, SchemaMismatch
from models.familiarity import FeatureRanges
from models.registry import CHALLENGER, Registry
from models.shipped import first_bundle
from models.window import Window
from training.dataset import Examples, build_examples
from training.fit import FitOptions, WarmStart, fit
from training.history import pull_history
from training.online.fine_tune import ANCHOR_STRENGTH, slowed, warm_start
from training.online.memory import Memory
from training.record.lineage import Lineage, git_sha, span_unix_s
from training.record.results import Judgement
from training.record.run import NAME, Retraining, run_record
from training.rehearsal.learning import Practice, Rehearsed
from training.simulator.model import Fleet
from training.stretches import Split, split
from training.trials.evidence import Case

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Champion:
    """What serves, to go on from."""

    version: str
    bundle: Bundle


Judge: TypeAlias = Callable[[Case], Judgement]
"""Compares a candidate with the champion, on history that was held out."""
Rehearse: TypeAlias = Callable[[Practice], Rehearsed]
"""Learns corrections to the rule from what weights cost in the simulator."""


def serving_champion(registry: Registry) -> Champion | None:
    """The champion; None: there is none, or none that this release can read.

    Raises:
        models.errors.RegistryUnavailable: the registry does not answer.
    """
    version = registry.champion_version()
    if version is None:
        return None
    try:
        return Champion(version, registry.load(version))
    except (SchemaMismatch, CorruptBundle) as error:
        log.warning("the champion can't be gone on from", version=version, error=str(error))
        return None


def retrain(
    source: PrometheusSource,
    classes: Sequence[TaskClass],
    registry: Registry,
    *,
    since_s: float,
    end_unix_s: float,
    options: FitOptions,
    memory: Memory,
    rehearse: Rehearse | None = None,
    judge: Judge | None = None,
    fresh: bool = False,
    progress: bool = False,
) -> str:
    """Learn from the last ``since_s`` seconds; returns the new ``@challenger``'s version.

    Nothing serves it before it is promoted. A champion that has learned anything is gone on
    from, unless it is to be started afresh, and the history is remembered. Without a rehearsal
    only the forecast of violations is learned. With a judge, a
    fifth of the history is held out to judge by, and the verdicts are kept with the version.

    Raises:
        controlplane.errors.TelemetryError: Prometheus failed, or knows no engine.
        NotEnoughHistory: too few steps with traffic.
        FitDiverged: the loss was no number in any epoch.
        StateUnavailable: the memory could not be written; the version is registered.
        models.errors.RegistryUnavailable: the result could not be stored.
    """
    history = pull_history(source, classes, since_s=since_s, end_unix_s=end_unix_s)
    return learn(
        history,
        classes,
        registry,
        options=options,
        memory=memory,
        rehearse=rehearse,
        judge=judge,
        fresh=fresh,
        source_url=source.url,
        progress=progress,
    )


def learn(
    history: Window,
    classes: Sequence[TaskClass],
    registry: Registry,
    *,
    options: FitOptions,
    memory: Memory,
    rehearse: Rehearse | None = None,
    judge: Judge | None = None,
    fresh: bool = False,
    source_url: str | None = None,
    progress: bool = False,
) -> str:
    """As `retrain`, from a history at hand."""
    parts = Split((history,)) if judge is None else split(history)
    examples = build_examples(parts.learned, classes, min_examples=options.min_examples)
    serving = serving_champion(registry)
    serves = None if serving is None else serving.bundle
    kept = [moment for moment in memory.reservoir.moments if parts.learnable(moment)]
    warm = None if fresh else warm_start(serves, kept, classes)
    champion = None if warm is None else serving  # that has learned anything
    used = options if warm is None else slowed(options)
    fleet = Fleet(memory.calibration.engine, engines=memory.engines)
    asked, rehearsed = tuple(classes), None
    if rehearse is not None:
        start = _shipped() if champion is None else champion.bundle
        rehearsed = rehearse(Practice(start, asked, parts.learned, fleet, used.seed))
        warm = _after(rehearsed, warm)
    fitted = fit(examples, used, warm=warm, progress=progress)
    lineage = Lineage(
        source=source_url,
        champion_version=None if champion is None else champion.version,
        calibration_hash=memory.calibration.hash,
        git_sha=git_sha(),
    )
    provenance = _provenance(history, used.seed, lineage)
    bundle = Bundle(fitted.network, provenance, ranges=_ranges(examples, rehearsed))
    judgement = Judgement()
    if judge is not None:
        judgement = judge(
            Case(
                candidate=bundle,
                champion=serves,
                classes=asked,
                learned=parts.learned,
                held_out=parts.held_out,
                fleet=fleet,
                newest=memory.calibration,
            )
        )
    done = Retraining(bundle, fitted, history, classes, used, judgement, lineage, rehearsed)
    version = registry.register(bundle, alias=CHALLENGER, run=run_record(done))
    memory.keep(history)
    return version


def _shipped() -> Bundle | None:
    """The release's own model, if one comes with it."""
    bundle = first_bundle()
    return bundle if bundle.provenance.trained else None


def _after(rehearsed: Rehearsed, warm: WarmStart | None) -> WarmStart:
    """The forecast is what is left to learn."""
    if warm is not None:
        return replace(warm, network=rehearsed.network)
    return WarmStart(rehearsed.network, ANCHOR_STRENGTH, kept=None, forecast_only=True)


def _ranges(examples: Examples, rehearsed: Rehearsed | None) -> FeatureRanges:
    """Of all that the network has seen, recorded and rehearsed."""
    if rehearsed is None:
        return FeatureRanges.of(examples.features)
    return FeatureRanges.of(np.concatenate([examples.features, rehearsed.features]))


def _provenance(history: Window, seed: int, lineage: Lineage) -> Provenance:
    start_unix_s, end_unix_s = span_unix_s(history)
    return Provenance(
        origin=NAME,
        seed=seed,
        data_start_unix_s=start_unix_s,
        data_end_unix_s=end_unix_s,
        started_from=lineage.champion_version,
        calibration_hash=lineage.calibration_hash,
    )
