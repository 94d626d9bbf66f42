"""A child process that is ready when its probe says so, and gone when we are."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from benchmarks.errors import ChildFailed, MissingProgram

_POLL_S = 0.1
_TERM_GRACE_S = 10.0


def free_port() -> int:
    """Return a TCP port on loopback that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def answers_http(url: str) -> bool:
    """Say whether ``url`` answers 200 within a second."""
    try:
        return httpx.get(url, timeout=1.0).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


class ChildProcess:
    """Runs ``argv`` in a process group of its own, its output in ``log``.

    The whole process group is ended on exit from the context: SIGTERM, then
    SIGKILL to what is left after 10 s. On Linux the child also ends when we are
    killed without a chance to clean up.

    It stays in our session: Linux shares a core between sessions first (autogroups), and
    an engine that spins in a session of its own keeps a client on the same core waiting
    for seconds (decision 0008).

    Raises:
        MissingProgram: ``argv[0]`` is not installed.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
    ) -> None:
        if shutil.which(argv[0]) is None:
            raise MissingProgram(argv[0])
        self.name = name
        self.log = log
        with log.open("ab") as sink:
            self._process = subprocess.Popen(  # noqa: S603 - argv is ours, no shell
                [*_tied_to_parent(), *argv],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                process_group=0,
            )

    @property
    def pid(self) -> int:
        """Process id, which is also the id of its process group."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def wait_ready(self, ready: Callable[[], bool], *, timeout_s: float) -> None:
        """Wait until ``ready()``.

        Raises:
            ChildFailed: it ended first, or was not ready within ``timeout_s``.
        """
        deadline_s = time.monotonic() + timeout_s
        while not ready():
            if not self.running:
                raise ChildFailed(self.name, f"ended with {self._process.returncode}", self.log)
            if time.monotonic() > deadline_s:
                raise ChildFailed(self.name, f"was not ready after {timeout_s:.0f} s", self.log)
            time.sleep(_POLL_S)

    def kill(self) -> None:
        """``kill -9`` the process group, and wait for the process to be gone."""
        self._signal_group(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """End the process group; safe to call twice."""
        self._signal_group(signal.SIGTERM)
        try:
            self._process.wait(_TERM_GRACE_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            # What the leader left behind, too: vLLM's engine core is its child.
            self.kill()

    def _signal_group(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


def _tied_to_parent() -> list[str]:
    return ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
