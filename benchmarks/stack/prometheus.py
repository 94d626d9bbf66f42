"""A real Prometheus server on loopback, scraping given targets."""

import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.stack.process import ChildProcess, answers_http, free_port

_READY_TIMEOUT_S = 30.0


class PrometheusServer:
    """Prometheus with its data below ``folder``; use :attr:`child` as the context.

    Raises:
        MissingProgram: Prometheus is not installed.
        ChildFailed: it did not become ready.
    """

    def __init__(self, folder: Path, targets: Sequence[str], *, scrape_interval_s: int = 1) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        config = folder / "prometheus.yml"
        # JSON is YAML.
        config.write_text(json.dumps(_scrape_config(targets, scrape_interval_s)))
        self.child = ChildProcess(
            "prometheus",
            [
                "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{self.port}",
                "--log.level=warn",
            ],
            log=folder / "prometheus.log",
        )

    def wait_ready(self) -> None:
        """Wait until it answers queries."""
        self.child.wait_ready(
            lambda: answers_http(f"{self.url}/-/ready"), timeout_s=_READY_TIMEOUT_S
        )


def _scrape_config(targets: Sequence[str], scrape_interval_s: int) -> dict[str, object]:
    interval = f"{scrape_interval_s}s"
    return {
        "global": {"scrape_interval": interval, "scrape_timeout": interval},
        "scrape_configs": [
            {"job_name": "vllm", "static_configs": [{"targets": list(targets)}]},
        ],
    }
