"""`trimtab explain`: why a snapshot's weights are what they are."""

from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli.failure import ExitCode, fail
from cli.weights import Address, AsJson, json_line, unavailable
from controlplane.client import DEFAULT_ADDRESS, WeightsClient
from controlplane.errors import ClientError, NoSuchSnapshot
from controlplane.snapshot import ClassDecision, Decision, Plan


def explain(
    version: Annotated[int, typer.Argument(min=1, max=2**64 - 1, help="A snapshot's version.")],
    address: Address = DEFAULT_ADDRESS,
    *,
    as_json: AsJson = False,
) -> None:
    """Show features, rule, residual, guardrails and weight of each class."""
    with WeightsClient(address) as client:
        try:
            decision = client.explain(version)
        except NoSuchSnapshot as error:
            fail(str(error), fix="`trimtab weights get` names the newest", code=ExitCode.USAGE)
        except ClientError as error:
            unavailable(error)
    if as_json:
        typer.echo(json_line(decision))
    else:
        Console().print(Text(_summary(decision)), decision_table(decision.plan), sep="\n")


def decision_table(plan: Plan) -> Table:
    """One column per class; from what was measured, down to the weight."""
    table = Table()
    table.add_column("")
    for one in plan.classes:
        table.add_column(one.task_class, justify="right")
    for index, name in enumerate(_feature_names(plan)):
        table.add_row(name, *(_number(one.features[index].value) for one in plan.classes))
    table.add_section()
    table.add_row("rule share", *(_number(one.rule_share) for one in plan.classes))
    table.add_row("residual", *(_number(one.residual) for one in plan.classes))
    if any(one.dither is not None for one in plan.classes):
        table.add_row("dither", *(_number(one.dither) for one in plan.classes))
    table.add_row("guardrails", *(", ".join(one.guardrails) or "-" for one in plan.classes))
    table.add_row("[bold]weight[/]", *(f"[bold]{one.weight:.4f}[/]" for one in plan.classes))
    return table


def _summary(decision: Decision) -> str:
    plan = decision.plan
    end = plan.window_end_unix_s
    window = (
        "no window" if end is None else f"window to {datetime.fromtimestamp(end, tz=UTC):%F %T} UTC"
    )
    model = f"model {plan.model_version}" if plan.model_version else "no model"
    return f"version {decision.version}: {plan.mode} ({plan.mode_reason}), {model}, {window}"


def _feature_names(plan: Plan) -> list[str]:
    first: ClassDecision = plan.classes[0]
    return [feature.name for feature in first.features]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
