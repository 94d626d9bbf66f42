"""`trimtab train base`: the model that a fresh registry could start with, from a fixed seed."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from cli.failure import ExitCode, fail
from cli.guardrails import Guardrails
from cli.train_simulated import COLUMNS
from controlplane.config import GuardrailsSection
from training.errors import BadFile, FitDiverged, OtherTraining

if TYPE_CHECKING:
    from models.bundle import Bundle
    from training.regret.rounds import RoundOptions, Training
    from training.regret.trial import Pair, Standing


def base(
    *,
    folder: Annotated[
        Path, typer.Option(help="state of the training; one that was stopped goes on from it")
    ] = Path("mlruns/base-model"),
    out: Annotated[
        Path | None, typer.Option(help="write the model here if it beats the rule")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, max=99, help="of visits and a fit each")] = 4,
    worlds: Annotated[int, typer.Option(min=2, help="visited in each round")] = 110,
    seed: Annotated[int, typer.Option(min=0, max=1_000_000, help="of everything random")] = 0,
    trials: Annotated[int, typer.Option(min=1, help="worlds to compare with the rule on")] = 128,
    processes: Annotated[int, typer.Option(min=1, max=256, help="that simulate")] = 2,
) -> None:
    """Train on drawn worlds, and compare with the rule on others."""
    from training.regret.rounds import RoundOptions, Training  # noqa: PLC0415 - torch, numba

    console = Console()
    rails = Guardrails(GuardrailsSection().max_log_share_step)
    options = RoundOptions(rounds=rounds, worlds=worlds, seed=seed)
    try:
        training = Training(folder, options, rails, processes=processes)
        bundle = _trained(console, training)
    except OtherTraining as error:
        fail(str(error), fix="pass another --folder, or remove it", code=ExitCode.USAGE)
    except BadFile as error:
        fail(str(error), fix=f"remove {error.path}; its round is done again")
    except FitDiverged as error:
        fail(str(error), fix="pass another --seed")
    pairs = _compared(console, bundle, rails, options, trials=trials, processes=processes)
    _report(console, pairs, bundle, out)


def _trained(console: Console, training: "Training") -> "Bundle":
    with Progress(*COLUMNS, console=console) as progress:
        task = progress.add_task("compiling", total=training.parts, completed=training.parts_done)

        def advance(what: str) -> None:
            progress.update(task, description=what, advance=1)

        try:
            return training.run(advance)
        except KeyboardInterrupt:
            progress.stop()
            console.print(
                f"stopped; {training.done} rounds are kept, the same command goes on from there"
            )
            raise typer.Exit(ExitCode.INTERRUPTED) from None


def _compared(
    console: Console,
    bundle: "Bundle",
    rails: Guardrails,
    options: "RoundOptions",
    *,
    trials: int,
    processes: int,
) -> "list[Pair]":
    from training.regret.rounds import pool_of  # noqa: PLC0415 - torch, numba
    from training.regret.trial import FIRST_TRIAL_SEED, compare  # noqa: PLC0415 - the same

    task = partial(compare, bundle=bundle, guard=rails, duration_s=options.duration_s)
    seeds = range(FIRST_TRIAL_SEED, FIRST_TRIAL_SEED + trials)
    with Progress(*COLUMNS, console=console) as progress, pool_of(processes) as pool:
        return list(
            progress.track(
                pool.map(task, seeds), total=trials, description="comparing with the rule"
            )
        )


def _report(console: Console, pairs: "Sequence[Pair]", bundle: "Bundle", out: Path | None) -> None:
    from training.regret.trial import standings  # noqa: PLC0415 - torch, numba

    found = standings(pairs)
    console.print(trial_table(found))
    if not found["all"].beats_the_rule:
        console.print("it does not beat the rule, which stays what a fresh registry starts with")
    elif out is not None:
        bundle.save(out)
        console.print(f"it beats the rule; written to {out}")


def trial_table(found: "Mapping[str, Standing]") -> Table:
    """A line for each regime: loss under both, and the change with its interval.

    Narrow enough for 80 columns.
    """
    table = Table(box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    table.add_column("regime", no_wrap=True)
    for column in ("rule", "learned", "change", "95% interval", "wins", "worst class"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, row in found.items():
        table.add_row(
            name,
            f"{row.rule:.3f}",
            f"{row.learned:.3f}",
            f"{row.change_ratio:+.1%}",
            f"{row.low:+.3f}, {row.high:+.3f}",
            f"{row.wins}/{row.pairs}",
            f"{row.rule_worst:.2f}, {row.learned_worst:.2f}",
        )
    return table
