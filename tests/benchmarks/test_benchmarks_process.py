import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.errors import ChildFailed, MissingProgram
from benchmarks.stack.process import ChildProcess

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]
# Ignores SIGTERM, and has a child that does too.
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_leaving_the_context_ends_the_process(tmp_path: Path) -> None:
    with ChildProcess("sleeper", SLEEPER, log=tmp_path / "log") as child:
        assert child.running
    assert not child.running


def test_a_stubborn_process_and_its_children_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.stack.process._TERM_GRACE_S", 0.5)
    log = tmp_path / "log"
    with ChildProcess("stubborn", [sys.executable, "-c", STUBBORN], log=log) as child:
        child.wait_ready(lambda: log.read_text().endswith("\n"), timeout_s=20)
        grandchild = int(log.read_text())
        assert _alive(grandchild)
    assert not child.running
    # Killed, but it is not our child to wait for: the kernel ends it when it gets to it.
    deadline_s = time.monotonic() + 20
    while _alive(grandchild):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_a_process_that_ends_early_is_reported_with_its_last_words(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "print('no such model'); raise SystemExit(7)"]
    with (
        ChildProcess("engine", argv, log=tmp_path / "log") as child,
        pytest.raises(ChildFailed, match=r"engine ended with 7(?s:.)*no such model"),
    ):
        child.wait_ready(lambda: False, timeout_s=20)


def test_a_process_that_never_becomes_ready_is_reported(tmp_path: Path) -> None:
    with (
        ChildProcess("engine", SLEEPER, log=tmp_path / "log") as child,
        pytest.raises(ChildFailed, match="was not ready"),
    ):
        child.wait_ready(lambda: False, timeout_s=0.3)


def test_a_missing_program_names_the_fix(tmp_path: Path) -> None:
    with pytest.raises(MissingProgram, match="no-such-program") as caught:
        ChildProcess("x", ["no-such-program"], log=tmp_path / "log")
    assert "make setup" in caught.value.fix


def test_a_child_shares_our_session_but_not_our_process_group(tmp_path: Path) -> None:
    with ChildProcess("engine", SLEEPER, log=tmp_path / "log") as child:
        assert os.getsid(child.pid) == os.getsid(0)
        assert os.getpgid(child.pid) == child.pid != os.getpgid(0)
