"""The `trimtab` command: one sub-command per module."""

import typer

app = typer.Typer(
    name="trimtab",
    help="Online-learning control plane for vLLM fleets.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Entry point of the console script."""
    app()
