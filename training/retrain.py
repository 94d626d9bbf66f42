"""From metric history to a registered challenger."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import structlog

from controlplane.telemetry.source import PrometheusSource
from models.bundle import Bundle, Provenance
from models.classes import TaskClass
from models.errors import CorruptBundle, SchemaMismatch
from models.familiarity import FeatureRanges
from models.registry import CHALLENGER, Registry
from models.window import Window
from training.dataset import build_examples
from training.fit import FitOptions, WarmStart, fit
from training.history import pull_history
from training.online.fine_tune import slowed, warm_start
from training.online.memory import Memory
from training.record.lineage import Lineage, git_sha, span_unix_s
from training.record.results import Judgement
from training.record.run import NAME, Retraining, run_record
from training.simulator.calibration import REFERENCE_ENGINE
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
    memory: Memory | None = None,
    judge: Judge | None = None,
    progress: bool = False,
) -> str:
    """Learn from the last ``since_s`` seconds; returns the new ``@challenger``'s version.

    Nothing serves it before it is promoted. With a memory, a champion that has learned anything
    is gone on from instead of starting anew, and the history is remembered. With a judge, a
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
        judge=judge,
        source_url=source.url,
        progress=progress,
    )


def learn(
    history: Window,
    classes: Sequence[TaskClass],
    registry: Registry,
    *,
    options: FitOptions,
    memory: Memory | None = None,
    judge: Judge | None = None,
    source_url: str | None = None,
    progress: bool = False,
) -> str:
    """As `retrain`, from a history at hand."""
    parts = Split((history,)) if judge is None else split(history)
    examples = build_examples(parts.learned, classes, min_examples=options.min_examples)
    champion = None if memory is None and judge is None else serving_champion(registry)
    warm = None if memory is None else _warm(memory, champion, parts, classes)
    used = options if warm is None else slowed(options)
    fitted = fit(examples, used, warm=warm, progress=progress)
    lineage = Lineage(
        source=source_url,
        champion_version=None if warm is None or champion is None else champion.version,
        calibration_hash=None if memory is None else memory.calibration.hash,
        git_sha=git_sha(),
    )
    bundle = Bundle(
        fitted.network,
        _provenance(history, used.seed, lineage),
        ranges=FeatureRanges.of(examples.features),
    )
    judgement = Judgement()
    if judge is not None:
        judgement = judge(_case(bundle, champion, parts, classes, memory))
    done = Retraining(bundle, fitted, history, classes, used, judgement, lineage)
    version = registry.register(bundle, alias=CHALLENGER, run=run_record(done))
    if memory is not None:
        memory.keep(history)
    return version


def _warm(
    memory: Memory, champion: Champion | None, parts: Split, classes: Sequence[TaskClass]
) -> WarmStart | None:
    """What to go on from; nothing that is held out is in it."""
    moments = [moment for moment in memory.reservoir.moments if parts.learnable(moment)]
    return None if champion is None else warm_start(champion.bundle, moments, classes)


def _case(
    candidate: Bundle,
    champion: Champion | None,
    parts: Split,
    classes: Sequence[TaskClass],
    memory: Memory | None,
) -> Case:
    calibration = REFERENCE_ENGINE if memory is None else memory.calibration
    return Case(
        candidate=candidate,
        champion=None if champion is None else champion.bundle,
        classes=tuple(classes),
        learned=parts.learned,
        held_out=parts.held_out,
        fleet=Fleet(calibration.engine, engines=1 if memory is None else memory.engines),
        newest=calibration,
    )


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
