"""A real vLLM engine (CPU build) with a tiny model, on loopback."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.errors import MissingProgram
from benchmarks.stack.process import ChildProcess, answers_http, free_port
from benchmarks.stack.tiny_llama import write_tiny_llama, write_tiny_weights

MODEL_NAME = "tiny-llama"
OLDEST_VLLM = Path(__file__).resolve().parents[2] / ".vllm-0.31"
"""Where ``make setup`` puts the oldest vLLM that the plugin supports."""

_READY_TIMEOUT_S = 360.0

Scheduler = Literal["trimtab", "stock-fcfs", "stock-priority"]

_SCHEDULER_ARGS: Mapping[Scheduler, tuple[str, ...]] = {
    "trimtab": ("--scheduler-cls", "dataplane.scheduler.TrimtabScheduler"),
    "stock-fcfs": ("--scheduling-policy", "fcfs"),
    "stock-priority": ("--scheduling-policy", "priority"),
}


@dataclass(frozen=True, slots=True)
class EngineSize:
    """Size of the model and of the engine's step.

    The default queues at about ten short requests/s on one CPU core, as a real
    server does at its own scale. How a step's tokens are shared is left at vLLM's
    default: no prompt is limited. Without ``weights_seed`` the weights are vLLM's dummy
    ones.
    """

    hidden: int = 384
    layers: int = 6
    heads: int = 6
    kv_heads: int = 2
    max_model_len: int = 4096
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 256
    long_prefill_token_threshold: int = 0
    kv_cache_gib: int = 1
    weights_seed: int | None = None


class VllmEngine:
    """vLLM's OpenAI server as a child process.

    Args:
        folder: of its model, metrics and log.
        scheduler: Trimtab's plugin, or one of vLLM's own.
        control_plane: ``host:port`` that the plugin follows.
        size: of model and step.
        core: that the worker has to itself; None: any.
        api_servers: processes that serve HTTP.
        options: more of vLLM's command-line options.
        overlay: folder of another vLLM than the installed one, as ``OLDEST_VLLM``.

    Attributes:
        metrics: where its processes keep their metrics.

    Raises:
        ChildFailed: it did not become ready.
        MissingProgram: there is no such overlay.
    """

    def __init__(
        self,
        folder: Path,
        *,
        scheduler: Scheduler = "trimtab",
        control_plane: str = "127.0.0.1:9440",
        size: EngineSize | None = None,
        core: int | None = None,
        api_servers: int = 1,
        options: Sequence[str] = (),
        overlay: Path | None = None,
    ) -> None:
        size = size or EngineSize()
        model = folder / "model"
        self.metrics = folder / "metrics"
        self.metrics.mkdir(parents=True, exist_ok=True)
        write_tiny_llama(
            model, hidden=size.hidden, layers=size.layers, heads=size.heads, kv_heads=size.kv_heads
        )
        if size.weights_seed is not None:
            write_tiny_weights(model, seed=size.weights_seed)
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.url = f"http://{self.address}"
        self.child = ChildProcess(
            "vllm",
            [
                *_program(api_servers),
                *_argv(model, size, self.port),
                *_SCHEDULER_ARGS[scheduler],
                *options,
            ],
            log=folder / "vllm.log",
            env={
                **_env(size, core),
                **environment_with(overlay),
                "PROMETHEUS_MULTIPROC_DIR": str(self.metrics),
                "TRIMTAB_CONTROL_PLANE": control_plane,
            },
        )

    def wait_ready(self) -> None:
        """Wait until it serves."""
        self.child.wait_ready(
            lambda: answers_http(f"{self.url}/health"), timeout_s=_READY_TIMEOUT_S
        )


def _program(api_servers: int) -> list[str]:
    if api_servers == 1:
        return [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    serve = [sys.executable, "-m", "benchmarks.stack.vllm_serve", "serve"]
    return [*serve, "--api-server-count", str(api_servers)]


def _argv(model: Path, size: EngineSize, port: int) -> list[str]:
    return [
        "--model", str(model),
        "--served-model-name", MODEL_NAME,
        "--load-format", "dummy" if size.weights_seed is None else "safetensors",
        "--dtype", "bfloat16",
        "--enforce-eager",
        "--host", "127.0.0.1",
        "--port", str(port),
        "--max-model-len", str(size.max_model_len),
        "--max-num-seqs", str(size.max_num_seqs),
        "--max-num-batched-tokens", str(size.max_num_batched_tokens),
        "--long-prefill-token-threshold", str(size.long_prefill_token_threshold),
        "--disable-uvicorn-access-log",
    ]  # fmt: skip


def environment_with(overlay: Path | None) -> dict[str, str]:
    """What makes Python look into the overlay first.

    Raises:
        MissingProgram: there is no such overlay.
    """
    if overlay is None:
        return {}
    if not overlay.is_dir():
        raise MissingProgram(f"the vLLM of {overlay}")
    folders = (str(overlay), os.environ.get("PYTHONPATH"))
    return {"PYTHONPATH": os.pathsep.join(folder for folder in folders if folder)}


def _env(size: EngineSize, core: int | None) -> dict[str, str]:
    return {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": str(size.kv_cache_gib),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind" if core is None else str(core),
        "OMP_NUM_THREADS": "1",
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
    }
