"""`trimtab discipline`: how the engines order requests, from now on."""

from typing import Annotated

import typer

from cli.actor import accountable
from cli.weights import Address, unavailable
from controlplane.client import DEFAULT_ADDRESS, WeightsClient
from controlplane.errors import ClientError
from controlplane.snapshot import Discipline


def discipline(
    name: Annotated[Discipline, typer.Argument(help="What the engines should use.")],
    reason: Annotated[str, typer.Option(help="Why; kept in the log and the store.")],
    actor: Annotated[str | None, typer.Option(help="Who; your user name if left out.")] = None,
    address: Address = DEFAULT_ADDRESS,
) -> None:
    """Switch all engines to a discipline; it stays until the next switch."""
    who = accountable(actor, reason)
    with WeightsClient(address) as client:
        try:
            version = client.set_discipline(name, actor=who, reason=reason)
        except ClientError as error:
            unavailable(error)
    typer.echo(f"{name.value} from snapshot {version} on")
