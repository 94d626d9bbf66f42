"""Results as they come in, so that a run that was stopped goes on where it was.

A line of the file is a task's key and its result. The key is a hash of the task and of the text
of all that decides its result; lines with other keys are of other runs, and stay.
"""

import hashlib
import json
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.learning.statics import Trial
from benchmarks.learning.units import Baselines, Learned

_ROOT = Path(__file__).parents[2]
_DECISIVE = (
    "benchmarks/learning/feedback.py",
    "benchmarks/learning/oracle.py",
    "benchmarks/learning/recorded.py",
    "benchmarks/learning/served.py",
    "benchmarks/learning/settings.py",
    "benchmarks/learning/statics.py",
    "benchmarks/learning/units.py",
    "controlplane/drift/*.py",
    "controlplane/forecaster.py",
    "controlplane/guardrails/*.py",
    "models/bundle.py",
    "models/features.py",
    "models/loss.py",
    "models/lstm.py",
    "models/rule.py",
    "training/closed_loop/*.py",
    "training/regret/lessons.py",
    "training/simulator/*.py",
)


Task: TypeAlias = Trial | Baselines | Learned
"""A part of the work, which any process can do. Its result can be JSON."""


class Journal:
    """Results by key, in a file.

    Args:
        path: read where it exists; every result is appended.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        whole = [json.loads(line) for line in lines if line.endswith("\n")]
        if lines and len(whole) < len(lines):  # the last one was being written
            path.write_text("".join(lines[:-1]), encoding="utf-8")
        self._results: dict[str, Any] = {line["key"]: line["result"] for line in whole}

    def __contains__(self, key: str) -> bool:
        """Whether the result is there."""
        return key in self._results

    def __getitem__(self, key: str) -> Any:
        """The result."""
        return self._results[key]

    def add(self, key: str, result: Any) -> None:
        """Keep a result."""
        self._results[key] = result
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": key, "result": result}) + "\n")


def key_of(task: Task) -> str:
    """Of a task. In which folder its files are is all the same."""
    document = json.dumps([type(task).__name__, asdict(task, dict_factory=_placeless)], default=str)
    return hashlib.sha256((_revision() + document).encode()).hexdigest()


def _placeless(items: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in items if not isinstance(value, Path)}


@cache
def _revision() -> str:
    """Of the text of what decides a result."""
    digest = hashlib.sha256()
    for pattern in _DECISIVE:
        for path in sorted(_ROOT.glob(pattern)):
            digest.update(path.read_bytes())
    return digest.hexdigest()
