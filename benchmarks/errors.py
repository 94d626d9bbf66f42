"""What can go wrong in the demo and the benchmarks.

BenchmarkError
├── ChildFailed          a process we started ended or never became ready
├── MissingProgram       a program we need is not installed
├── EngineRefused        the engine answered, but not with what we asked for
└── PolicyNotApplied     the engine did not get the policy that a block is about
"""

from pathlib import Path


class BenchmarkError(Exception):
    """Root of this package's errors; ``fix`` says what the user can do."""

    def __init__(self, cause: str, *, fix: str) -> None:
        super().__init__(cause)
        self.fix = fix


class ChildFailed(BenchmarkError):
    """A process we started ended or never became ready."""

    def __init__(self, name: str, why: str, log: Path) -> None:
        super().__init__(
            f"{name} {why}; the end of its log:\n{_last_lines(log)}",
            fix=f"read {log}; `trimtab doctor` checks what each part needs",
        )


class MissingProgram(BenchmarkError):
    """A program we need is not installed."""

    def __init__(self, program: str) -> None:
        super().__init__(f"{program} is not installed", fix="run `make setup`")


class EngineRefused(BenchmarkError):
    """The engine answered, but not with what we asked for."""


class PolicyNotApplied(BenchmarkError):
    """The engine did not get the policy that a block is about."""

    def __init__(self, policy: str, why: str) -> None:
        super().__init__(
            f"the engine could not be switched to {policy}: {why}",
            fix="leave the control plane running while the demo does",
        )


def _last_lines(log: Path, count: int = 15) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-count:])
