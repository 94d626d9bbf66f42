"""`trimtab models`: what is registered, and what serves."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from cli.actor import accountable
from cli.failure import ExitCode, fail
from controlplane.config import RegistrySection, load_config
from controlplane.errors import ConfigError
from models.errors import (
    CorruptBundle,
    NothingToRollBackTo,
    PromotionRefused,
    RegistryUnavailable,
    SchemaMismatch,
    UnknownVersion,
)
from models.succession import Succession, gates_of
from models.versions import ModelVersion, RegistryLocation

if TYPE_CHECKING:
    from models.registry import Registry

app = typer.Typer(help="Model versions: list them, promote one, go back.", no_args_is_help=True)

ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="the control plane's YAML file", show_default=False)
]
TrackingUriOption = Annotated[
    str | None,
    typer.Option("--tracking-uri", help="MLflow store, instead of the one in the configuration"),
]


@app.command("list")
def list_versions(
    config: ConfigOption = None,
    tracking_uri: TrackingUriOption = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """List the versions, newest first."""
    with registry_failures():
        versions = open_registry(_section(config), tracking_uri).versions()
    if as_json:
        typer.echo(json.dumps([asdict(version) for version in versions], indent=2))
    else:
        Console().print(_table(versions))


@app.command()
def promote(
    version: Annotated[str, typer.Argument(help="a number that `trimtab models list` shows")],
    reason: Annotated[str, typer.Option(help="why; kept in the audit trail")],
    actor: Annotated[str | None, typer.Option(help="who; by default the user's name")] = None,
    config: ConfigOption = None,
    tracking_uri: TrackingUriOption = None,
    *,
    force: Annotated[
        bool, typer.Option("--force", help="also if a gate failed; the audit trail tells")
    ] = False,
) -> None:
    """Make VERSION the champion. Control planes pick it up between two ticks."""
    who = accountable(actor, reason)
    with registry_failures():
        registry = open_registry(_section(config), tracking_uri)
        registry.promote(version, actor=who, reason=reason, force=force)
    typer.echo(f"version {version} is @champion")


@app.command()
def rollback(
    reason: Annotated[str, typer.Option(help="why; kept in the audit trail")],
    actor: Annotated[str | None, typer.Option(help="who; by default the user's name")] = None,
    config: ConfigOption = None,
    tracking_uri: TrackingUriOption = None,
) -> None:
    """Make @previous the champion again. Control planes pick it up between two ticks."""
    who = accountable(actor, reason)
    with registry_failures():
        version = open_registry(_section(config), tracking_uri).rollback(actor=who, reason=reason)
    typer.echo(f"version {version} is @champion again")


@app.command()
def history(
    config: ConfigOption = None,
    tracking_uri: TrackingUriOption = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Show who made which version the champion, when and why; oldest first."""
    with registry_failures():
        trail = open_registry(_section(config), tracking_uri).history()
    if as_json:
        typer.echo(json.dumps([asdict(entry) for entry in trail], indent=2))
    else:
        Console().print(_trail(trail))


def open_registry(section: RegistrySection, tracking_uri: str | None = None) -> "Registry":
    """The configured registry, or the one at ``tracking_uri``."""
    from models.registry import Registry  # noqa: PLC0415 - imports torch; --help need not

    location = (
        RegistryLocation(section.tracking_uri, section.artifact_root, section.model_name)
        if tracking_uri is None
        else RegistryLocation(tracking_uri, model_name=section.model_name)
    )
    return Registry(location)


@contextmanager
def registry_failures() -> Iterator[None]:
    """End the command with what the registry, or a version in it, is at fault for."""
    try:
        yield
    except UnknownVersion as error:
        fail(str(error), fix="see trimtab models list", code=ExitCode.USAGE)
    except SchemaMismatch as error:
        fail(
            str(error),
            fix="train a version with this release: trimtab train run",
            code=ExitCode.USAGE,
        )
    except PromotionRefused as error:
        fail(str(error), fix="train another version, or insist: --force", code=ExitCode.USAGE)
    except NothingToRollBackTo as error:
        fail(str(error), fix="trimtab models promote VERSION", code=ExitCode.USAGE)
    except CorruptBundle as error:
        fail(str(error), fix="promote another version, or train one", code=ExitCode.USAGE)
    except RegistryUnavailable as error:
        fail(
            str(error),
            fix="start the MLflow server, or correct registry.tracking_uri",
            code=ExitCode.UNAVAILABLE,
        )


def _section(config: Path | None) -> RegistrySection:
    """Where the file says the registry is; the default without a file."""
    if config is None:
        return RegistrySection()
    try:
        return load_config(config).registry
    except ConfigError as error:
        fail(str(error), fix=f"correct {config}", code=ExitCode.USAGE)


def _table(versions: list[ModelVersion]) -> Table:
    table = Table()
    for heading in ("version", "aliases", "registered, UTC", "gates", "loss", "persistence"):
        table.add_column(heading, no_wrap=True)
    for version in versions:
        registered = datetime.fromtimestamp(version.created_unix_s, tz=UTC)
        table.add_row(
            version.version,
            " ".join(f"@{alias}" for alias in version.aliases),
            f"{registered:%Y-%m-%d %H:%M}",
            gates_of(version.tags).value,
            _number(version.metrics.get("validation_loss")),
            _number(version.metrics.get("persistence_loss")),
        )
    return table


def _trail(trail: Sequence[Succession]) -> Table:
    table = Table()
    for heading in ("when, UTC", "what", "version", "instead of", "gates", "who", "why"):
        table.add_column(heading, overflow="fold")
    for entry in trail:
        table.add_row(
            f"{datetime.fromisoformat(entry.at):%Y-%m-%d %H:%M:%S}",
            f"{entry.action.value}{', forced' if entry.forced else ''}",
            entry.version,
            entry.replaced or "-",
            entry.gates.value,
            entry.actor,
            entry.reason,
        )
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
