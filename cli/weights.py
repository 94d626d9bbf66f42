"""`trimtab weights`: the weights in force, once or as they change."""

import dataclasses
import json
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cli.failure import ExitCode, fail
from controlplane.client import DEFAULT_ADDRESS, WeightsClient
from controlplane.errors import ClientError, ControlPlaneAway
from controlplane.snapshot import Snapshot

app = typer.Typer(help="The weights in force.", no_args_is_help=True)

Address = Annotated[str, typer.Option(help="host:port of the control plane.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object per line, for programs.")]


@app.command()
def get(address: Address = DEFAULT_ADDRESS, *, as_json: AsJson = False) -> None:
    """Show the newest snapshot."""
    with WeightsClient(address) as client:
        try:
            snapshot = client.get()
            canary = None if as_json else client.status().canary
        except ClientError as error:
            unavailable(error)
    if as_json:
        typer.echo(json_line(snapshot))
    else:
        Console().print(snapshot_table(snapshot))
        if canary is not None:
            typer.echo(f"canary: {canary}")


@app.command()
def watch(address: Address = DEFAULT_ADDRESS, *, as_json: AsJson = False) -> None:
    """Show each new snapshot until Ctrl-C."""
    with WeightsClient(address) as client:
        try:
            if as_json:
                for snapshot in client.watch():
                    typer.echo(json_line(snapshot))
            else:
                _watch_table(client)
        except ClientError as error:
            unavailable(error)
        except KeyboardInterrupt:
            return
    fail(
        f"{address} ended the stream: it is shutting down",
        fix="start it again, then watch again",
        code=ExitCode.UNAVAILABLE,
    )


def _watch_table(client: WeightsClient) -> None:
    console = Console()
    if not console.is_terminal:  # a pipe or a file: each table after the other
        for snapshot in client.watch():
            console.print(snapshot_table(snapshot))
        return
    with Live(console=console, auto_refresh=False) as live:
        for snapshot in client.watch():
            live.update(snapshot_table(snapshot), refresh=True)


def unavailable(error: ClientError) -> NoReturn:
    """Leave, saying what to do about a call that failed."""
    if isinstance(error, ControlPlaneAway):
        fail(
            f"no control plane answers: {error}",
            fix="start one with `trimtab serve --config FILE`, or pass --address",
            code=ExitCode.UNAVAILABLE,
        )
    fail(str(error), fix="see the control plane's log")


def json_line(record: Any) -> str:
    """A record as one line of JSON."""
    return json.dumps(dataclasses.asdict(record))


def snapshot_table(snapshot: Snapshot) -> Table:
    """One row per class, the heaviest first."""
    table = Table(
        title=f"version {snapshot.version}, {snapshot.mode}, {snapshot.discipline}",
        # The reason quotes others, such as Prometheus: no markup in it.
        caption=Text(f"{snapshot.mode_reason}; epoch {snapshot.epoch}", style="table.caption"),
    )
    table.add_column("class")
    for name in ("weight", "default", "TTFT SLO", "value"):
        table.add_column(name, justify="right")
    for policy in sorted(snapshot.classes, key=lambda policy: -policy.weight):
        task_class = policy.task_class
        table.add_row(
            task_class.name,
            f"{policy.weight:.4f}",
            f"{policy.default_weight:.4f}",
            f"{task_class.slo.ttft_s:g} s",
            f"{task_class.value:g}",
        )
    return table
