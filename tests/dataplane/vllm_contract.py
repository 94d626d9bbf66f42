"""What the plugin needs of vLLM's insides, item by item, and why.

vLLM may change any of it in any release. Each item is looked up in the vLLM that is
installed, and one that is gone or different says so in one line.
"""

import dis
import enum
import importlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass

import vllm


@dataclass(frozen=True, slots=True)
class Item:
    """Something of vLLM's that the plugin touches. Attributes: why, completing "the plugin ..."."""

    owner: str
    name: str
    why: str

    def complaints(self, owner: type) -> Iterator[str]:
        """What is wrong with it in this form of its owner."""
        if self.name not in names_of(owner):
            yield f"{self._label(owner)} is gone: the plugin {self.why}"

    def _label(self, owner: type) -> str:
        return f"vLLM {vllm.__version__}: {owner.__name__}.{self.name}"


@dataclass(frozen=True, slots=True)
class Method(Item):
    """A method that the plugin calls with these parameters."""

    parameters: tuple[str, ...]

    def complaints(self, owner: type) -> Iterator[str]:
        """What is wrong with it in this form of its owner."""
        yield from Item.complaints(self, owner)
        if hasattr(owner, self.name):
            theirs = _parameters(getattr(owner, self.name))
            for name in self.parameters:
                if name not in theirs:
                    yield f"{self._label(owner)} lost its parameter `{name}`: the plugin {self.why}"
            yield from self._surplus(owner, theirs)

    def _surplus(self, owner: type, theirs: dict[str, inspect.Parameter]) -> Iterator[str]:
        for name, parameter in theirs.items():
            if name not in self.parameters and parameter.default is parameter.empty:
                yield f"{self._label(owner)} now wants `{name}`: the plugin {self.why}"


@dataclass(frozen=True, slots=True)
class Override(Method):
    """A method that the plugin overrides: vLLM calls it with these parameters and no other."""

    def _surplus(self, owner: type, theirs: dict[str, inspect.Parameter]) -> Iterator[str]:
        for name in theirs:
            if name not in self.parameters:
                yield f"{self._label(owner)} gained a parameter `{name}`: the plugin {self.why}"


def complaints(items: tuple[Item, ...]) -> list[str]:
    """What the installed vLLM lacks."""
    found: list[str] = []
    for item in items:
        try:
            owner = owner_of(item)
        except (ImportError, AttributeError) as error:
            found.append(
                f"vLLM {vllm.__version__}: {item.owner} is gone ({error}): the plugin {item.why}"
            )
        else:
            found.extend(item.complaints(owner))
    return found


def owner_of(item: Item) -> type:
    """The class that an item belongs to."""
    module, name = item.owner.split(":")
    owner: type = getattr(importlib.import_module(module), name)
    return owner


def names_of(owner: type) -> set[str]:
    """Attributes of a class and, as far as its initialisers set them, of its instances."""
    if issubclass(owner, enum.Enum):
        return set(owner.__members__)
    found: set[str] = set()
    for ancestor in owner.__mro__[:-1]:
        found |= {*vars(ancestor), *vars(ancestor).get("__annotations__", {})}
        code = getattr(vars(ancestor).get("__init__"), "__code__", None)
        if code is not None:
            steps = dis.get_instructions(code)
            found |= {step.argval for step in steps if step.opname == "STORE_ATTR"}
    return found


def _parameters(method: object) -> dict[str, inspect.Parameter]:
    signature = inspect.signature(method)  # type: ignore[arg-type] # whatever vLLM has there
    return {name: parameter for name, parameter in signature.parameters.items() if name != "self"}


_SCHEDULER = "vllm.v1.core.sched.async_scheduler:AsyncScheduler"
_QUEUE = "vllm.v1.core.sched.request_queue:RequestQueue"
_REQUEST = "vllm.v1.request:Request"

_METHODS = (
    Override(_SCHEDULER, "schedule", "orders and times each step there", ("throttle_prefills",)),
    Override(
        _SCHEDULER,
        "update_from_output",
        "meters there what a step gave",
        ("scheduler_output", "model_runner_output"),
    ),
    Override(
        _SCHEDULER,
        "_preempt_request",
        "calls and overrides it to preempt by weight and to meter preemptions",
        ("request", "timestamp", "drop_stale_output"),
    ),
    Override(
        _SCHEDULER,
        "_free_request",
        "lets go of a request there, however it ended",
        ("request", "delay_free_blocks"),
    ),
    Override(
        _SCHEDULER,
        "_reserve_prefill_lookahead",
        "caps each request's share of a step there, as it is the last to set it",
        ("request", "num_computed_tokens", "num_new_tokens"),
    ),
    Override(_SCHEDULER, "shutdown", "ends its threads there", ()),
    Method(
        _SCHEDULER,
        "_request_blocks_can_be_freed",
        "preempts nobody whose memory stays taken",
        ("request",),
    ),
    *(
        Override(_QUEUE, name, "stands in for vLLM's waiting queue", parameters)
        for name, parameters in {
            "add_request": ("request",),
            "pop_request": (),
            "peek_request": (),
            "prepend_request": ("request",),
            "prepend_requests": ("requests",),
            "remove_request": ("request",),
            "remove_requests": ("requests",),
            "__bool__": (),
            "__len__": (),
            "__iter__": (),
        }.items()
    ),
    Method(_REQUEST, "get_finished_reason", "tells outcomes apart by it", ()),
    Method(
        "vllm.v1.core.block_pool:BlockPool",
        "get_num_free_blocks",
        "foresees a shortage of memory by it",
        (),
    ),
    Method(
        "vllm.v1.core.kv_cache_manager:KVCacheManager",
        "get_blocks",
        "counts by it what a preemption would free",
        ("request_id",),
    ),
    Method(
        "vllm.v1.core.kv_cache_manager:KVCacheManager",
        "prefix_cache_lookup_enabled",
        "asks by it whether the prefix cache spares a request anything",
        ("request",),
    ),
    Method(
        "vllm.v1.core.kv_cache_coordinator:KVCacheCoordinator",
        "find_longest_cache_hit",
        "leaves no tokens of a step to what the prefix cache spares",
        ("block_hashes", "max_cache_hit_length"),
    ),
)


_ATTRIBUTES: dict[str, dict[str, str]] = {
    _SCHEDULER: {
        "waiting": "puts its own queue there",
        "running": "orders it by weight, as vLLM takes memory away from its end",
        "policy": "refuses to start beside vLLM's own priorities",
        "max_num_active_reqs": "knows by it when vLLM stops admitting",
        "max_num_scheduled_tokens": "reads and lowers a step's token budget there",
        "kv_cache_manager": "asks it for free memory",
        "kv_cache_config": "counts the groups of KV blocks in it",
        "block_size": "turns tokens into KV blocks",
        "_inflight_prefills": "knows by it whose prompt is still being read",
        "num_waiting_for_streaming_input": "counts the run slots that paused sessions hold",
        "need_mamba_block_aligned_split": "leaves chunks alone where state must end on a block",
        "num_spec_tokens": "counts drafted tokens into what a decode takes of a step",
        "requires_kv_delivery": "drops what is in flight of whom it preempts where vLLM would",
        "max_model_len": "knows by it how much memory the longest sequence takes",
        "adaptive_long_prefill_threshold": "foresees by it how long vLLM makes a chunk",
        "scheduler_config": "foresees by it how long vLLM makes a chunk",
        "lora_config": "waits for no request whose adapter does not fit onto the engine",
        "pause_state": "preempts for nobody in a pause",
        "prev_step_scheduled_req_ids": "takes out whom it preempts, who is then new to the workers",
    },
    _REQUEST: {
        "request_id": "names tickets by it",
        "arrival_time": "takes a request's age from it",
        "num_prompt_tokens": "sorts requests into classes by it",
        "num_tokens": "knows by it how much of a prompt is left",
        "num_computed_tokens": "counts by it what a preemption would recompute",
        "num_output_tokens": "counts generated tokens by it",
        "sampling_params": "finds the class's name and the token limit in it",
        "priority": "sorts requests into classes by it",
        "lora_request": "sorts requests into classes by it",
        "block_hashes": "looks a waiting prompt up in the prefix cache by them",
        "has_encoder_inputs": "leaves chunks alone that pictures are read with",
        "status": "cuts the chunks of what runs only",
    },
    "vllm.v1.request:RequestStatus": {
        "RUNNING": "cuts the chunks of what runs only",
        "WAITING": "preempts for what waits for a place only",
        "PREEMPTED": "preempts for what waits for a place only",
    },
    "vllm.v1.core.sched.interface:PauseState": {"UNPAUSED": "preempts for nobody in a pause"},
    "vllm.v1.engine:FinishReason": dict.fromkeys(("ABORT", "ERROR"), "tells outcomes apart by it"),
    "vllm.v1.core.sched.request_queue:SchedulingPolicy": {
        "FCFS": "refuses to start under any other policy"
    },
    "vllm.v1.core.sched.output:SchedulerOutput": {
        "scheduled_new_reqs": "counts admissions by it",
        "scheduled_cached_reqs": "counts resumptions by it",
        "num_scheduled_tokens": "tells by it what a step was made of",
        "total_num_scheduled_tokens": "knows empty steps by it",
    },
    "vllm.v1.core.sched.output:CachedRequestData": {"resumed_req_ids": "counts resumptions by it"},
    "vllm.v1.core.kv_cache_manager:KVCacheManager": {
        "usage": "exports it",
        "block_pool": "asks it for free memory",
        "coordinator": "looks waiting prompts up in the prefix cache there",
    },
    "vllm.lora.request:LoRARequest": {
        "lora_int_id": "tells adapters apart by it",
    },
    "vllm.config.lora:LoRAConfig": {
        "max_loras": "waits for no request whose adapter does not fit onto the engine",
    },
    "vllm.v1.core.kv_cache_manager:KVCacheBlocks": {"blocks": "counts a request's own blocks"},
    "vllm.v1.core.kv_cache_utils:KVCacheBlock": {"ref_cnt": "counts a request's own blocks by it"},
    "vllm.v1.kv_cache_interface:KVCacheConfig": {
        "num_blocks": "knows by it how much memory there is",
        "kv_cache_groups": "counts the blocks that one token takes by them",
    },
    "vllm.config.scheduler:SchedulerConfig": {
        "long_prefill_token_threshold": "foresees by it how long vLLM makes a chunk"
    },
}

CONTRACT: tuple[Item, ...] = (
    *_METHODS,
    *(
        Item(owner, name, why)
        for owner, names in _ATTRIBUTES.items()
        for name, why in names.items()
    ),
)
