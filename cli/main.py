"""The `trimtab` command: one sub-command per module."""

import typer

from cli import models, train, weights
from cli.demo import demo
from cli.discipline import discipline
from cli.doctor import doctor
from cli.explain import explain
from cli.serve import serve
from cli.simulate import simulate

app = typer.Typer(
    name="trimtab",
    help="Online-learning control plane for vLLM fleets.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for command in (demo, serve, explain, discipline, doctor, simulate):
    app.command()(command)
app.add_typer(weights.app, name="weights")
app.add_typer(models.app, name="models")
app.add_typer(train.app, name="train")


def main() -> None:
    """Entry point of the console script."""
    app()
