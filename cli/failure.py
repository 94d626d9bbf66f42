"""How a command fails: one line with the cause, one with the fix, and an exit code."""

from enum import IntEnum
from typing import NoReturn

import typer
from rich.console import Console
from rich.text import Text


class ExitCode(IntEnum):
    """What the shell sees."""

    OK = 0
    FAILED = 1
    """The command ran and what it was asked for did not work out."""
    USAGE = 2
    """The input is wrong: arguments, configuration, a name that does not exist."""
    UNAVAILABLE = 3
    """Something the command needs does not answer."""
    INTERRUPTED = 130
    """Ctrl-C, as shells have it."""


def fail(cause: str, *, fix: str, code: ExitCode = ExitCode.FAILED) -> NoReturn:
    """Print cause and fix to stderr and leave with ``code``."""
    stderr = Console(stderr=True, soft_wrap=True, highlight=False)
    # Causes and fixes quote names and brackets of others: no markup in them.
    stderr.print(Text.assemble(("error: ", "bold red"), cause))
    stderr.print(Text.assemble(("  fix: ", "bold"), fix))
    raise typer.Exit(int(code))
