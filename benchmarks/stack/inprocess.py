"""vLLM's scheduler in this process, driven as its engine drives it, around a made-up model.

The scheduler, its KV cache manager and its request objects are vLLM's own. Only the model
is made up: its tokens mean nothing, but it gives one exactly where a real one would.
"""

import functools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from benchmarks.stack.tiny_llama import write_tiny_llama
from dataplane.weights import WeightTable

_LAYER = "model.layers.0.self_attn.attn"
_VOCABULARY = 256


@dataclass(frozen=True, slots=True)
class SchedulerSize:
    """What a scheduler is given to schedule with; the defaults are those of vLLM on a GPU.

    Attributes:
        blocks: KV blocks; vLLM keeps one of them for itself.
        in_flight: steps that run at once; 2 is vLLM's asynchronous operation.
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int = 8192
    blocks: int = 32768
    block_size: int = 16
    in_flight: int = 2
    prefix_caching: bool = True


def build_scheduler(
    kind: type[AsyncScheduler], size: SchedulerSize, *, policy: str = "fcfs"
) -> Any:
    """Construct a scheduler as vLLM's engine core does; stop it with ``shutdown()``."""
    config = _vllm_config(size, policy)
    kv_cache = KVCacheConfig(
        num_blocks=size.blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec([_LAYER], _attention(size))],
    )
    return kind(
        vllm_config=config,
        kv_cache_config=kv_cache,
        structured_output_manager=StructuredOutputManager(config),
        block_size=size.block_size,
        hash_block_size=size.block_size,
        log_stats=True,  # as the API server has it
    )


@contextmanager
def running_scheduler(
    kind: type[AsyncScheduler],
    size: SchedulerSize,
    *,
    policy: str = "fcfs",
    table: WeightTable | None = None,
) -> Iterator[Any]:
    """A scheduler that is shut down at the end; a table comes into force at the beginning."""
    scheduler = build_scheduler(kind, size, policy=policy)
    try:
        if table is not None:
            put_in_force(scheduler, table)
        yield scheduler
    finally:
        scheduler.shutdown()


def put_in_force(scheduler: Any, table: WeightTable) -> None:
    """Hand a snapshot to the plugin, as its stream does."""
    scheduler._in_force.offer(table)  # noqa: SLF001 - the stream's own way in, without a stream


def faults(scheduler: Any) -> int:
    """How often a part of the plugin failed."""
    count: int = scheduler._barrier.faults  # noqa: SLF001 - what the metric shows, without an exporter
    return count


class RequestMaker:
    """Makes requests as they reach a scheduler of a given size."""

    def __init__(self, size: SchedulerSize) -> None:
        self._hasher: Callable[[Request], Any] | None = None
        if size.prefix_caching:
            hash_function = get_hash_fn_by_name("sha256")
            init_none_hash(hash_function)
            self._hasher = get_request_block_hasher(size.block_size, hash_function)

    def make(
        self,
        request_id: str,
        *,
        prompt_token_ids: list[int],
        max_tokens: int,
        task_class: str | None = None,
        priority: int = 0,
        arrived_s: float | None = None,
    ) -> Request:
        """One request. Args: arrived_s: wall clock; None: now."""
        parameters = SamplingParams(
            max_tokens=max_tokens,
            temperature=0.0,
            ignore_eos=True,
            extra_args=None if task_class is None else {"task_class": task_class},
        )
        return Request(
            request_id=request_id,
            prompt_token_ids=prompt_token_ids,
            sampling_params=parameters,
            pooling_params=None,
            arrival_time=arrived_s,
            priority=priority,
            block_hasher=self._hasher,
        )


@dataclass(slots=True)
class MadeUpModel:
    """Gives one token to each request whose last known token a step computes.

    Attributes:
        known: by request, how many tokens there are of it: prompt and sampled.
    """

    known: dict[str, int] = field(default_factory=dict)

    def run(self, step: SchedulerOutput) -> ModelRunnerOutput:
        """What vLLM's model runner would return of a step; the tokens depend on their place."""
        for request_id in step.finished_req_ids:
            self.known.pop(request_id, None)
        computed = {}
        for new in step.scheduled_new_reqs:
            self.known.setdefault(new.req_id, len(new.prompt_token_ids or ()))
            computed[new.req_id] = new.num_computed_tokens
        cached = step.scheduled_cached_reqs
        computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        request_ids = list(step.num_scheduled_tokens)
        return ModelRunnerOutput(
            req_ids=request_ids,
            req_id_to_index={request_id: i for i, request_id in enumerate(request_ids)},
            sampled_token_ids=[
                self._sample(request_id, computed[request_id] + tokens)
                for request_id, tokens in step.num_scheduled_tokens.items()
            ],
        )

    def _sample(self, request_id: str, computed: int) -> list[int]:
        known = self.known[request_id]
        if computed < known:
            return []
        self.known[request_id] = known + 1
        return [known % _VOCABULARY]


@dataclass(frozen=True, slots=True)
class EngineStep:
    """What one turn of the engine did, and its CPU time in the scheduler.

    CPU time of this thread and not time on the wall: a busy machine does not disturb it.

    Attributes:
        scheduled: the step that was scheduled; None: none.
        outputs: of the step whose results came back, which may be an earlier one.
    """

    scheduled: SchedulerOutput | None
    outputs: tuple[EngineCoreOutput, ...]
    schedule_s: float
    update_s: float


class InProcessEngine:
    """The loop of vLLM's engine core: keeps up to ``in_flight`` steps in the air.

    Args:
        scheduler: any of vLLM's or the plugin's.
        in_flight: 1 is synchronous, 2 asynchronous operation.
        on_scheduled: shown each step, before any results come back.
    """

    def __init__(
        self,
        scheduler: Any,
        *,
        in_flight: int = 2,
        on_scheduled: Callable[[SchedulerOutput], None] | None = None,
    ) -> None:
        self.scheduler = scheduler
        self._in_flight = in_flight
        self._on_scheduled = on_scheduled
        self._model = MadeUpModel()
        self._flying: deque[tuple[SchedulerOutput, ModelRunnerOutput]] = deque()

    @property
    def is_idle(self) -> bool:
        """Whether another turn would do nothing."""
        return not self._flying and not self.scheduler.has_requests()

    def add(self, requests: Iterable[Request]) -> None:
        """Let requests arrive."""
        for request in requests:
            self.scheduler.add_request(request)

    def abort(self, request_ids: Iterable[str]) -> list[Request]:
        """End requests as a client that leaves does."""
        ended: list[Request] = self.scheduler.finish_requests(
            request_ids, RequestStatus.FINISHED_ABORTED
        )
        return ended

    def step(self) -> EngineStep:
        """Schedule one step and, once enough are in flight, take the results of the oldest."""
        started_s = time.thread_time()
        scheduled = self.scheduler.schedule() if self.scheduler.has_requests() else None
        schedule_s = time.thread_time() - started_s
        if scheduled is not None:
            if self._on_scheduled is not None:
                self._on_scheduled(scheduled)
            self._flying.append((scheduled, self._model.run(scheduled)))
            ran = scheduled.total_num_scheduled_tokens > 0
            if len(self._flying) < self._in_flight and (ran or self.scheduler.has_requests()):
                return EngineStep(scheduled, (), schedule_s, 0.0)
        if not self._flying:
            return EngineStep(scheduled, (), schedule_s, 0.0)
        oldest, result = self._flying.popleft()
        started_s = time.thread_time()
        batches = self.scheduler.update_from_output(oldest, result)
        update_s = time.thread_time() - started_s
        outputs = tuple(output for batch in batches.values() for output in batch.outputs)
        return EngineStep(scheduled, outputs, schedule_s, update_s)


@functools.cache  # vLLM takes longer to check a configuration than to make a scheduler of it
def _vllm_config(size: SchedulerSize, policy: str) -> VllmConfig:
    with TemporaryDirectory(prefix="trimtab-model-") as folder:
        write_tiny_llama(Path(folder), hidden=64, layers=1, heads=1, kv_heads=1)
        config = EngineArgs(
            model=folder,
            load_format="dummy",
            dtype="bfloat16",
            enforce_eager=True,
            max_model_len=size.max_model_len,
            max_num_seqs=size.max_num_seqs,
            max_num_batched_tokens=size.max_num_batched_tokens,
            block_size=size.block_size,
            enable_prefix_caching=size.prefix_caching,
            scheduling_policy=policy,
            # Without a tokenizer the process starts no threads for grammars.
            skip_tokenizer_init=True,
        ).create_engine_config()
    config.cache_config.num_gpu_blocks = size.blocks
    # vLLM's CPU platform turns it off; what is measured is the loop of a GPU engine.
    config.scheduler_config.async_scheduling = size.in_flight > 1
    return config


def _attention(size: SchedulerSize) -> FullAttentionSpec:
    return FullAttentionSpec(
        block_size=size.block_size, num_kv_heads=1, head_size=64, dtype=torch.bfloat16
    )
