"""The list of failures names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_each_failure_is_held_by_tests_that_exist() -> None:
    rows = re.findall(
        r"^\| (\d+) \|.*\|(.*)\|$", (ROOT / "docs/failures.md").read_text(), re.MULTILINE
    )
    code = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(rows) >= 13
    for number, tests in rows:
        names = re.findall(r"`(\w+)`", tests)
        assert names, f"nothing holds failure {number}"
        assert [name for name in names if f"def {name}(" not in code] == []
