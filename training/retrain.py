"""From metric history to a registered challenger."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from controlplane.telemetry.source import PrometheusSource
from models.bundle import Bundle, Provenance
from models.classes import TaskClass
from models.errors import CorruptBundle, SchemaMismatch
from models.familiarity import FeatureRanges
from models.registry import CHALLENGER, Registry
from models.window import Window
from training.dataset import build_examples
from training.fit import FitOptions, fit
from training.history import pull_history
from training.online.fine_tune import slowed, warm_start
from training.online.memory import Memory
from training.record.lineage import Lineage, git_sha, span_unix_s
from training.record.results import Judgement
from training.record.run import NAME, Retraining, run_record

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Champion:
    """What serves, to go on from."""

    version: str
    bundle: Bundle


def nothing_judged(_bundle: Bundle) -> Judgement:
    """Of a retraining whose result is for a person to judge."""
    return Judgement()


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
    judge: Callable[[Bundle], Judgement] = nothing_judged,
    progress: bool = False,
) -> str:
    """Learn from the last ``since_s`` seconds; returns the new ``@challenger``'s version.

    Nothing serves it before it is promoted. With a memory, a champion that has learned anything
    is gone on from instead of starting anew, and the history is remembered. What ``judge`` says
    of the network is kept with the version.

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
    judge: Callable[[Bundle], Judgement] = nothing_judged,
    source_url: str | None = None,
    progress: bool = False,
) -> str:
    """As `retrain`, from a history at hand."""
    examples = build_examples(history, classes, min_examples=options.min_examples)
    champion = None if memory is None else serving_champion(registry)
    warm = (
        None
        if memory is None or champion is None
        else warm_start(champion.bundle, memory.reservoir, classes)
    )
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
    done = Retraining(bundle, fitted, history, classes, used, judge(bundle), lineage)
    version = registry.register(bundle, alias=CHALLENGER, run=run_record(done))
    if memory is not None:
        memory.keep(history)
    return version


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
