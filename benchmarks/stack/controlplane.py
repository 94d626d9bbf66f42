"""The control plane as a child process on loopback, with a configuration of ours."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.stack.process import ChildProcess, answers_http, free_port
from models.classes import TaskClass

_READY_TIMEOUT_S = 60.0


class ControlPlane:
    """``trimtab serve`` as a child process that can be killed and started again.

    Raises:
        ChildFailed: it did not become ready.
    """

    def __init__(
        self,
        folder: Path,
        *,
        prometheus_url: str,
        classes: Sequence[TaskClass],
        mlruns: Path,
        port: int,
        tick_s: float = 5.0,
        ttl_s: float = 30.0,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.address = f"127.0.0.1:{port}"
        self.metrics_address = f"127.0.0.1:{free_port()}"
        self.config = folder / "trimtab.yaml"
        self.tracking_uri = f"sqlite:///{mlruns / 'mlflow.db'}"
        self._log = folder / "controlplane.log"
        settings = {
            "listen": self.address,
            "metrics_listen": self.metrics_address,
            "tick_s": tick_s,
            "ttl_s": ttl_s,
            "prometheus": {
                "url": prometheus_url,
                "scrape_interval_s": 1,
                "timeout_s": tick_s / 2,
            },
            "store": {"path": str(folder / "trimtab.db")},
            "registry": {
                "tracking_uri": self.tracking_uri,
                "artifact_root": str(mlruns / "artifacts"),
                "poll_s": tick_s,
            },
            "classes": {kind.name: _class_settings(kind) for kind in classes},
        }
        # JSON is YAML.
        self.config.write_text(json.dumps(settings, indent=2))
        self.child = self._start()

    def _start(self) -> ChildProcess:
        return ChildProcess(
            "control plane",
            [sys.executable, "-m", "cli", "serve", "--config", str(self.config)],
            log=self._log,
        )

    def wait_ready(self) -> None:
        """Wait until it serves."""
        self.child.wait_ready(
            lambda: answers_http(f"http://{self.metrics_address}/metrics"),
            timeout_s=_READY_TIMEOUT_S,
        )

    def stop(self) -> None:
        """End the process that runs at the moment."""
        self.child.stop()

    def start_again(self) -> None:
        """Start it once more, after it was killed, on the same ports and store."""
        self.child = self._start()


def _class_settings(kind: TaskClass) -> dict[str, object]:
    slo = {"ttft_s": kind.slo.ttft_s, "tpot_s": kind.slo.tpot_s, "e2e_s": kind.slo.e2e_s}
    return {
        "slo": {name: seconds for name, seconds in slo.items() if seconds is not None},
        "value": kind.value,
        "floor": kind.floor,
        "late": kind.late.value,
        "tier": kind.tier.value,
        **({} if kind.max_wait_s is None else {"max_wait_s": kind.max_wait_s}),
    }
