"""What the gates of `trimtab train run` said: told, and heeded."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

from models.errors import PromotionRefused
from models.succession import Gates, gates_of, verdicts_of
from models.verdicts import Verdict
from models.versions import ModelVersion

if TYPE_CHECKING:
    from models.registry import Registry

ACTOR = "trimtab train"
"""Who promotes, when nobody does it by hand."""


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
