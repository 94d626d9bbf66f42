"""The parts of `trimtab train run` that simulate: the rehearsal, and the evidence for the gates."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from cli.guardrails import Guardrails
from controlplane.config import Config

if TYPE_CHECKING:
    from training.record.results import Judgement
    from training.rehearsal.learning import Practice, RehearsalOptions, Rehearsed
    from training.trials.evidence import Case, TrialOptions

COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TimeElapsedColumn(),
    TimeRemainingColumn(),
)


@dataclass(frozen=True, slots=True)
class Rehearsing:
    """Learns what weights cost. Attributes: console: None: in silence."""

    guardrails: Guardrails
    options: "RehearsalOptions"
    console: Console | None

    def __call__(self, practice: "Practice") -> "Rehearsed":
        """With a bar of progress."""
        from training.rehearsal.learning import rehearse  # noqa: PLC0415 - torch, numba

        with _bar("rehearsal", self.options.total, self.console) as advance:
            return rehearse(practice, self.guardrails, self.options, advance)


@dataclass(frozen=True, slots=True)
class Judging:
    """Puts candidates through the gates. Attributes: console: None: in silence."""

    guardrails: Guardrails
    options: "TrialOptions"
    console: Console | None

    def __call__(self, case: "Case") -> "Judgement":
        """Compare in the simulator, with a bar of progress, and let every gate have its say."""
        from training.trials.evidence import gather  # noqa: PLC0415 - torch, numba
        from training.trials.judgement import judgement_of  # noqa: PLC0415 - the same

        with _bar("gates", self.options.total, self.console) as advance:
            return judgement_of(gather(case, self.guardrails, self.options, advance))


def guardrails_of(settings: Config) -> Guardrails:
    """Those that the fleet is served with."""
    floors = tuple(one.floor for one in settings.task_classes)
    return Guardrails(settings.guardrails.max_log_share_step, floors)


@contextmanager
def _bar(what: str, total: int, console: Console | None) -> Iterator[Callable[[str], None]]:
    """A bar, and what moves it on."""
    with Progress(*COLUMNS, console=console, disable=console is None) as progress:
        task = progress.add_task(f"{what}: compiling", total=total)
        yield lambda part: progress.update(task, description=f"{what}: {part}", advance=1)
