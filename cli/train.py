"""`trimtab train`: learn a new version from what Prometheus has seen."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.failure import ExitCode, fail
from cli.models import open_registry, registry_failures
from cli.train_base import base
from controlplane.clock import SystemClock
from controlplane.config import Config, load_config
from controlplane.errors import ConfigError, NoEngineMetrics, TelemetryError
from models.window import STEP_S
from training.dataset import MIN_EXAMPLES
from training.errors import FitDiverged, NotEnoughHistory

if TYPE_CHECKING:
    from models.registry import Registry

app = typer.Typer(help="Train model versions.", no_args_is_help=True)

app.command()(base)

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_LONGEST_S = 366 * _SECONDS["d"]
_QUERY_TIMEOUT_S = 60.0
"""A day of history takes longer to answer than the window of a tick."""


@app.callback()
def train() -> None:
    """Train model versions."""


def duration_s(text: str) -> float:
    """Seconds of ``90s``, ``30m``, ``12h`` or ``7d``; from one step to a leap year."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    seconds = float(match[1]) * _SECONDS[match[2]] if match else 0.0
    if not STEP_S <= seconds <= _LONGEST_S:
        raise typer.BadParameter(
            f"{text!r} is no duration of {STEP_S:g}s to 366d; write 90s, 30m, 12h or 7d"
        )
    return seconds


@app.command()
def run(
    since: Annotated[
        float,
        typer.Option(parser=duration_s, metavar="DURATION", help="history to learn from, e.g. 30m"),
    ],
    config: Annotated[
        Path, typer.Option(help="the control plane's YAML file: classes, Prometheus, registry")
    ] = Path("trimtab.yaml"),
    prometheus: Annotated[
        str | None, typer.Option(metavar="URL", help="instead of the one in the configuration")
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=2**32 - 1, help="of the initial weights and the order")
    ] = 0,
    min_examples: Annotated[
        int, typer.Option(min=2, help="refuse to learn from fewer steps with traffic")
    ] = MIN_EXAMPLES,
) -> None:
    """Fit a network to the history and register it as @challenger."""
    try:
        settings = load_config(config)
    except ConfigError as error:
        fail(str(error), fix="pass the control plane's file: --config FILE", code=ExitCode.USAGE)
    with registry_failures():
        registry = open_registry(settings.registry)
        version = _retrain(
            settings, registry, prometheus, since_s=since, seed=seed, min_examples=min_examples
        )
        (trained,) = (entry for entry in registry.versions() if entry.version == version)
    losses = ", ".join(
        f"{forecast} loss {trained.metrics[f'{forecast}_loss']:.4f}"
        for forecast in ("validation", "persistence", "constant")
    )
    typer.echo(f"version {version} is @challenger: {losses}")
    typer.echo(f"to serve it: trimtab models promote {version} --reason TEXT --config {config}")


def _retrain(
    settings: Config,
    registry: "Registry",
    prometheus: str | None,
    *,
    since_s: float,
    seed: int,
    min_examples: int,
) -> str:
    # Torch and Lightning take seconds to import; --help need not wait for them.
    import torch  # noqa: PLC0415

    from controlplane.telemetry.source import PrometheusSource  # noqa: PLC0415
    from training.fit import FitOptions  # noqa: PLC0415
    from training.retrain import retrain  # noqa: PLC0415

    torch.set_num_threads(1)  # a small network gains nothing from more, the engine loses
    source = PrometheusSource(
        prometheus or settings.prometheus.url,
        timeout_s=_QUERY_TIMEOUT_S,
        scrape_interval_s=settings.prometheus.scrape_interval_s,
    )
    try:
        return retrain(
            source,
            settings.task_classes,
            registry,
            since_s=since_s,
            end_unix_s=SystemClock().unix_s(),
            options=FitOptions(seed=seed, min_examples=min_examples),
            progress=True,
        )
    except NotEnoughHistory as error:
        fail(str(error), fix="use a longer --since, or let traffic run for longer")
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
    finally:
        source.close()
