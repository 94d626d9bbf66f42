"""`trimtab train`: learn a new version from what Prometheus has seen."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import structlog
import typer
from rich.console import Console
from rich.table import Table

from cli.durations import duration_s
from cli.failure import ExitCode, fail
from cli.models import open_registry, registry_failures
from cli.schedule import DEFAULT_CONFIG, schedule, state_failures, status
from cli.serve import configuration
from cli.train_base import base
from cli.train_gate import GatedRun, promoted_if_passed
from cli.train_simulated import Judging, Rehearsing, guardrails_of
from controlplane.client import WeightsClient
from controlplane.clock import SystemClock
from controlplane.config import Config
from controlplane.errors import ClientError, NoEngineMetrics, TelemetryError
from controlplane.log import configure_log
from models.succession import Gates, gates_of
from models.versions import ModelVersion
from training.dataset import MIN_EXAMPLES
from training.errors import BadFile, FitDiverged, NotEnoughHistory
from training.objective import Objective
from training.schedule.folder import StateFolder
from training.schedule.journal import StartedBy

if TYPE_CHECKING:
    from models.registry import Registry
    from training.online.recalibration import Reading

log = structlog.get_logger(__name__)
app = typer.Typer(help="Train model versions.", no_args_is_help=True)

app.command()(base)

_QUERY_TIMEOUT_S = 60.0
"""A day of history takes longer to answer than the window of a tick."""


@app.callback()
def train() -> None:
    """Train model versions."""


app.command()(schedule)
app.command()(status)


@app.command()
def run(
    *,
    since: Annotated[
        float,
        typer.Option(parser=duration_s, metavar="DURATION", help="history to learn from, e.g. 30m"),
    ],
    config: Annotated[
        Path, typer.Option(help="the control plane's YAML file: classes, Prometheus, registry")
    ] = DEFAULT_CONFIG,
    prometheus: Annotated[
        str | None, typer.Option(metavar="URL", help="instead of the one in the configuration")
    ] = None,
    control_plane: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="instead of `listen` in the configuration"),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=2**32 - 1, help="of the initial weights and the order")
    ] = 0,
    min_examples: Annotated[
        int, typer.Option(min=2, help="refuse to learn from fewer steps with traffic")
    ] = MIN_EXAMPLES,
    objective: Annotated[
        Objective,
        typer.Option(
            help="learn what weights cost in the simulator, then the forecast of violations; "
            "or that forecast alone"
        ),
    ] = Objective.REGRET,
    worlds: Annotated[
        int, typer.Option(min=2, max=1000, help="to rehearse in, for the objective regret")
    ] = 48,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="start from the release's model, not from the champion")
    ] = False,
    gate: Annotated[
        bool,
        typer.Option(
            help="hold a fifth of the history out, and compare with the champion on that and on "
            "old regimes in the simulator"
        ),
    ] = True,
    gate_pairs: Annotated[
        int,
        typer.Option(min=20, max=10_000, help="comparisons on each regime; fewer prove nothing"),
    ] = 20,
    processes: Annotated[int, typer.Option(min=1, max=256, help="that simulate")] = 2,
    promote: Annotated[
        bool, typer.Option("--promote", help="make it @champion if every gate lets it pass")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON, and no progress")] = False,
    started_by: Annotated[StartedBy, typer.Option(hidden=True)] = StartedBy.HAND,
) -> None:
    """Fit a network to the history, judge it, and register it as @challenger.

    A gate that it does not pass is no failure of the run: the champion stays.
    """
    if promote and not gate:
        fail("--promote goes by the gates", fix="leave --no-gate out", code=ExitCode.USAGE)
    settings = configuration(config)
    configure_log()
    folder = StateFolder(settings.training.state)
    asked = _Asked(
        prometheus or settings.prometheus.url,
        control_plane or settings.listen,
        since,
        seed,
        min_examples,
        worlds if objective is Objective.REGRET else None,
        gate_pairs if gate else None,
        processes,
        fresh=fresh,
        progress=not as_json,
    )
    with registry_failures(), state_failures(), _training_failures():
        with folder.retrain(started_by, SystemClock()) as in_hand:
            registry = open_registry(settings.registry)
            in_hand.version = _retrain(settings, registry, asked, folder.path)
        trained = next(one for one in registry.versions() if one.version == in_hand.version)
        done = promoted_if_passed(registry, trained) if promote else GatedRun(trained)
    if as_json:
        typer.echo(json.dumps(done.document))
    else:
        _tell(done, config)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the command line says of a run.

    Attributes:
        worlds: None: nothing is rehearsed.
        gate_pairs: None: nobody judges it.
    """

    prometheus_url: str
    control_plane: str
    since_s: float
    seed: int
    min_examples: int
    worlds: int | None
    gate_pairs: int | None
    processes: int
    fresh: bool
    progress: bool

    @property
    def console(self) -> Console | None:
        """For bars of progress."""
        return Console() if self.progress else None


def _retrain(settings: Config, registry: "Registry", asked: _Asked, state: Path) -> str:
    # Torch and Lightning take seconds to import; --help need not wait for them.
    import torch  # noqa: PLC0415

    from controlplane.telemetry.source import PrometheusSource  # noqa: PLC0415
    from training.fit import FitOptions  # noqa: PLC0415
    from training.online.memory import recall  # noqa: PLC0415
    from training.retrain import retrain  # noqa: PLC0415

    torch.set_num_threads(1)  # a small network gains nothing from more, the engine loses
    source = PrometheusSource(
        asked.prometheus_url,
        timeout_s=_QUERY_TIMEOUT_S,
        scrape_interval_s=settings.prometheus.scrape_interval_s,
    )
    with closing(source):
        return retrain(
            source,
            settings.task_classes,
            registry,
            since_s=asked.since_s,
            end_unix_s=SystemClock().unix_s(),
            options=FitOptions(seed=asked.seed, min_examples=asked.min_examples),
            memory=recall(state, reading=_reading(asked.control_plane)),
            rehearse=_rehearse(settings, asked),
            judge=_judge(settings, asked),
            fresh=asked.fresh,
            progress=asked.progress,
        )


def _rehearse(settings: Config, asked: _Asked) -> Rehearsing | None:
    from training.rehearsal.learning import RehearsalOptions  # noqa: PLC0415 - as above

    if asked.worlds is None:
        return None
    options = RehearsalOptions(worlds=asked.worlds, processes=asked.processes)
    return Rehearsing(guardrails_of(settings), options, asked.console)


def _judge(settings: Config, asked: _Asked) -> Judging | None:
    from training.trials.evidence import TrialOptions  # noqa: PLC0415 - as above

    if asked.gate_pairs is None:
        return None
    options = TrialOptions(pairs=asked.gate_pairs, processes=asked.processes)
    return Judging(guardrails_of(settings), options, asked.console)


def _reading(address: str) -> "Reading | None":
    """The engines' step sums, as the control plane knows them; None: it does not answer."""
    from training.online.recalibration import Reading  # noqa: PLC0415 - as above
    from training.simulator.step_fit import StepSums  # noqa: PLC0415 - as above

    sums = {}
    try:
        with WeightsClient(address) as client:
            engines = client.status().engines
        for engine in engines:
            if engine.last_report is not None and engine.last_report.step_time is not None:
                told = engine.last_report.step_time
                sums[engine.engine_id] = StepSums.reported(told.steps, told.gram, told.moment)
    except (ClientError, ValueError) as error:
        log.warning("the simulator's calibration stays as it was", cause=str(error))
        return None
    return Reading(SystemClock().unix_s(), sums)


@contextmanager
def _training_failures() -> Iterator[None]:
    """End the command with why there is no new version."""
    try:
        yield
    except NotEnoughHistory as error:
        fail(str(error), fix="use a longer --since, or let traffic run for longer")
    except BadFile as error:
        fail(str(error), fix="move the file away: the next run starts a new one")
    except FitDiverged as error:
        fail(str(error), fix="try another --seed, or look for absurd numbers in the metrics")
    except NoEngineMetrics as error:
        fail(
            str(error),
            fix="let Prometheus scrape an engine with the plugin, or use a longer --since",
            code=ExitCode.UNAVAILABLE,
        )
    except TelemetryError as error:
        fail(
            str(error), fix="start Prometheus, or pass --prometheus URL", code=ExitCode.UNAVAILABLE
        )


def _tell(done: GatedRun, config: Path) -> None:
    trained = done.version
    losses = ", ".join(
        f"{forecast} loss {trained.metrics[f'{forecast}_loss']:.4f}"
        for forecast in ("validation", "persistence", "constant")
    )
    typer.echo(f"version {trained.version} is @challenger: {losses}")
    Console().print(_table(trained))
    done.tell()
    if not done.promoted and gates_of(trained.tags) is not Gates.FAILED:
        typer.echo(
            f"to serve it: trimtab models promote {trained.version} --reason TEXT --config {config}"
        )


def _table(trained: ModelVersion) -> Table:
    """Losses on the hold-out and on regimes, and how it came about."""
    table = Table("", "figure", box=None)
    for name, value in sorted(trained.metrics.items(), key=lambda pair: "." in pair[0]):
        if name.endswith(("_loss", "_ratio", "_error")):
            table.add_row(name, f"{value:.4f}")
    table.add_row("gates", trained.tags.get("trimtab.gates", "not run"))
    table.add_row("started", trained.tags.get("trimtab.started_from", "fresh"))
    return table
