"""A step of the engine: stock and plugin in turn, on the same batch."""

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from benchmarks.hook.batches import Batch, BatchRun
from benchmarks.hook.pairs import Comparison, compare, take_turns
from benchmarks.hook.tables import weight_table
from benchmarks.stack.inprocess import (
    InProcessEngine,
    RequestMaker,
    SchedulerSize,
    faults,
    running_scheduler,
)
from dataplane.scheduler import TrimtabScheduler

_METRICS_THREAD = "trimtab-metrics"


@dataclass(frozen=True, slots=True)
class StepRow:
    """One batch.

    Attributes:
        dispatched_per_step: by the plugin's side; stock dispatches as many.
        metrics_thread_ratio: CPU time of the plugin's metrics thread per second. The engine's
            thread waits for it now and then, as they share one interpreter.
        faults: of the plugin; after one it behaves as stock vLLM, so the row says little.
    """

    batch: Batch
    comparison: Comparison
    dispatched_per_step: float
    tokens_per_step: float
    metrics_thread_ratio: float
    faults: int


def measure_batch(batch: Batch, *, pairs: int, seed: int) -> StepRow:
    """Time ``pairs`` steps of either side in ``schedule()`` and ``update_from_output()``."""
    size = SchedulerSize(
        max_num_seqs=batch.running,
        max_num_batched_tokens=batch.step_tokens,
        blocks=_blocks(batch, pairs),
    )
    maker = RequestMaker(size)
    table = weight_table(batch.classes)
    with (
        running_scheduler(AsyncScheduler, size) as stock,
        running_scheduler(TrimtabScheduler, size, table=table) as plugin,
    ):
        stock_run, plugin_run = (
            BatchRun(batch, InProcessEngine(scheduler), maker, seed=seed)
            for scheduler in (stock, plugin)
        )
        stock_run.fill()
        plugin_run.fill()
        with heap_frozen():
            began_s, metrics_began_s = time.perf_counter(), _metrics_thread_s()
            seconds = take_turns(stock_run.step, plugin_run.step, pairs)
            metrics_s = _metrics_thread_s() - metrics_began_s
            metrics_ratio = metrics_s / (time.perf_counter() - began_s)
        return StepRow(
            batch,
            compare(*seconds, seed=seed),
            dispatched_per_step=plugin_run.dispatched / pairs,
            tokens_per_step=plugin_run.tokens / pairs,
            metrics_thread_ratio=metrics_ratio,
            faults=faults(plugin),
        )


@contextmanager
def heap_frozen() -> Iterator[None]:
    """What is there already is not collected any more; vLLM's engine does the same at start."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _blocks(batch: Batch, pairs: int) -> int:
    """Three times what runs: no step runs short of KV memory, nor of that kept in reserve."""
    tokens = batch.prompt_tokens + (batch.output_tokens or pairs + 100)
    per_request = -(-tokens // SchedulerSize().block_size) + 1
    return 3 * batch.running * per_request


def _metrics_thread_s() -> float:
    return sum(
        time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
        for thread in threading.enumerate()
        if thread.name == _METRICS_THREAD and thread.ident is not None
    )
