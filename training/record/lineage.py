"""Where the data and the code of a retraining come from."""

import hashlib
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from models.versions import DatasetRecord
from models.window import Signal, Window

_GIT_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Lineage:
    """What a version was made from, besides the history itself.

    Attributes:
        source: URL of the Prometheus; None: the history came otherwise.
        champion_version: that it was fine-tuned from; None: it was fitted afresh.
        calibration_hash: of the simulator's engine at the time; None: there was none.
        git_sha: of the code; None: it does not run from a checkout.
    """

    source: str | None = None
    champion_version: str | None = None
    calibration_hash: str | None = None
    git_sha: str | None = None


def git_sha() -> str | None:
    """The commit of the checkout that this code runs from; None: it is installed."""
    asked = ("git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD")
    try:
        done = subprocess.run(  # noqa: S603 - fixed arguments
            asked, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def dataset_record(history: Window, lineage: Lineage) -> DatasetRecord:
    """The history, named by its range and told apart by its values."""
    start, end = (_iso(unix_s) for unix_s in span_unix_s(history))
    tags = {"window_start": start, "window_end": end, "step_s": f"{history.step_s:g}"}
    if lineage.calibration_hash is not None:
        tags["calibration_hash"] = lineage.calibration_hash
    if lineage.git_sha is not None:
        tags["git_sha"] = lineage.git_sha
    return DatasetRecord(
        name=f"windows {start} to {end}",
        source=_without_password(lineage.source or "a history at hand"),
        digest=_digest(history),
        tags=tags,
    )


def span_unix_s(history: Window) -> tuple[float, float]:
    """Start and end of a history."""
    return history.end_unix_s - history.steps * history.step_s, history.end_unix_s


def _iso(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, tz=UTC).isoformat(timespec="seconds")


def _without_password(url: str) -> str:
    """What is kept for all to read names no user."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _digest(history: Window) -> str:
    """MLflow takes up to 36 characters."""
    values = hashlib.sha256(repr((history.task_classes, history.end_unix_s)).encode())
    for signal in Signal:
        values.update(history.signals[signal].tobytes())
    return values.hexdigest()[:32]
