"""The gates of `trimtab train run`: put a candidate through them, say so, and promote it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from cli.guardrails import Guardrails
from controlplane.config import Config
from models.errors import PromotionRefused
from models.succession import Gates, gates_of, verdicts_of
from models.verdicts import Verdict
from models.versions import ModelVersion

if TYPE_CHECKING:
    from models.registry import Registry
    from training.record.results import Judgement
    from training.trials.evidence import Case, TrialOptions

ACTOR = "trimtab train"
"""Who promotes, when nobody does it by hand."""

COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TimeElapsedColumn(),
    TimeRemainingColumn(),
)


@dataclass(frozen=True, slots=True)
class GatedRun:
    """A version that came out of a run, and what became of it.

    Attributes:
        promoted: it is @champion now.
        held_back: why it was to be promoted and was not; None: it was, or nobody asked.
    """

    version: ModelVersion
    promoted: bool = False
    held_back: str | None = None

    @property
    def document(self) -> dict[str, Any]:
        """For programs."""
        return {
            **asdict(self.version),
            "gates": [asdict(verdict) for verdict in verdicts_of(self.version.tags)],
            "outcome": gates_of(self.version.tags).value,
            "promoted": self.promoted,
            "held_back": self.held_back,
        }

    def tell(self) -> None:
        """For people: each gate in a line, then what follows from them."""
        verdicts = verdicts_of(self.version.tags)
        if verdicts:
            Console().print(gate_table(verdicts))
        number, outcome = self.version.version, gates_of(self.version.tags)
        if self.promoted:
            typer.echo(f"all gates passed: version {number} is @champion")
        elif self.held_back is not None:
            typer.echo(
                f"version {number} stays @challenger, nothing else changes: {self.held_back}"
            )
        elif outcome is Gates.FAILED:
            typer.echo(f"version {number} did not pass: {failed_gates(verdicts)}")


@dataclass(frozen=True, slots=True)
class GateKeeper:
    """Judges candidates, with a bar of progress or in silence."""

    guardrails: Guardrails
    options: "TrialOptions"
    console: Console | None

    @classmethod
    def of(cls, settings: Config, options: "TrialOptions", console: Console | None) -> "GateKeeper":
        """With the guardrails that the fleet is served with."""
        floors = tuple(one.floor for one in settings.task_classes)
        rails = Guardrails(settings.guardrails.max_log_share_step, floors)
        return cls(rails, options, console)

    def __call__(self, case: "Case") -> "Judgement":
        """Compare in the simulator, and let every gate have its say."""
        from training.trials.evidence import gather  # noqa: PLC0415 - torch, numba
        from training.trials.judgement import judgement_of  # noqa: PLC0415 - the same

        columns, quiet = COLUMNS, self.console is None
        with Progress(*columns, console=self.console, disable=quiet) as progress:
            task = progress.add_task("gates: compiling", total=self.options.total)

            def advance(what: str) -> None:
                progress.update(task, description=f"gates: {what}", advance=1)

            return judgement_of(gather(case, self.guardrails, self.options, advance))


def promoted_if_passed(registry: "Registry", trained: ModelVersion) -> GatedRun:
    """Make it the champion if every gate let it pass; else say why not."""
    verdicts = verdicts_of(trained.tags)
    if gates_of(trained.tags) is not Gates.PASSED:
        return GatedRun(trained, held_back=failed_gates(verdicts))
    try:
        registry.promote(trained.version, actor=ACTOR, reason=reason_of(verdicts))
    except PromotionRefused as error:
        return GatedRun(trained, held_back=error.objection)
    return GatedRun(trained, promoted=True)


def reason_of(verdicts: Sequence[Verdict]) -> str:
    """Why a version is promoted that passed its gates; for the audit trail."""
    return "passed " + "; ".join(f"{one.name} ({one.reason})" for one in verdicts)


def failed_gates(verdicts: Sequence[Verdict]) -> str:
    """Which gates it did not pass, and why."""
    failed = [f"gate {one.name}: {one.reason}" for one in verdicts if not one.passed]
    return "; ".join(failed) or "no gate was asked"


def gate_table(verdicts: Sequence[Verdict]) -> Table:
    """A line for each gate."""
    table = Table("gate", "", "why", box=None)
    for one in verdicts:
        table.add_row(one.name, "passed" if one.passed else "[red]failed[/]", one.reason)
    return table
