"""What the plugin reads of vLLM's scheduler, in the plugin's own terms.

Together with the overrides in ``dataplane.scheduler`` this is all that depends on how vLLM
is built inside.
"""

from typing import Any

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus

from dataplane.progress import LiveRequest
from dataplane.room import Room


class EngineView:
    """Reads; changes nothing.

    Attributes:
        step_tokens: most tokens of a step, as the engine is configured.
        total_blocks: KV blocks.
        block_tokens: tokens in one of them.
        groups: of layers with blocks of their own.
        longest_blocks: KV blocks of the longest sequence.
        tokens_per_decode: of a step's tokens, for a sequence that decodes: one, and the
            drafted ones.
        shapeable: whether prompts may be cut anywhere: chunked prefill may be off, and models
            with state-space layers want their chunks at block boundaries.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler: Any = scheduler
        self.step_tokens: int = scheduler.max_num_scheduled_tokens
        self.total_blocks: int = scheduler.kv_cache_config.num_blocks
        self.block_tokens: int = scheduler.block_size
        self.groups = max(1, len(scheduler.kv_cache_config.kv_cache_groups))
        self.longest_blocks = -(-scheduler.max_model_len // self.block_tokens) * self.groups
        self.tokens_per_decode: int = 1 + scheduler.num_spec_tokens
        self.shapeable = bool(
            scheduler.scheduler_config.enable_chunked_prefill
            and not scheduler.need_mamba_block_aligned_split
        )

    @property
    def running(self) -> list[Request]:
        """VLLM's own list, in its order."""
        running: list[Request] = self._scheduler.running
        return running

    @property
    def admits(self) -> bool:
        """Whether waiting requests may start at all: an operator may have paused the engine."""
        return bool(self._scheduler.pause_state is PauseState.UNPAUSED)

    def could_start(self, request: Request) -> bool:
        """Whether it waits for a place only, and not for a grammar, say, for KV, or an adapter."""
        waits = request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
        return waits and self._adapter_fits(request)

    def _adapter_fits(self, request: Request) -> bool:
        """Whether the request's LoRA adapter is on the engine, or one more may be."""
        lora, config = request.lora_request, self._scheduler.lora_config
        if lora is None or config is None:
            return True
        running = {one.lora_request.lora_int_id for one in self.running if one.lora_request}
        return lora.lora_int_id in running or len(running) < config.max_loras

    def cached_tokens(self, request: Request) -> int:
        """How many tokens of a waiting request the prefix cache holds; counts no hit."""
        manager = self._scheduler.kv_cache_manager
        if not manager.prefix_cache_lookup_enabled(request):
            return 0
        found = manager.coordinator.find_longest_cache_hit(
            request.block_hashes, request.num_tokens - 1
        )
        return int(found[1])

    def prompt_ids(self) -> list[str]:
        """The running requests whose prompts are not through."""
        return [request.request_id for request in self._scheduler._inflight_prefills]  # noqa: SLF001 - vLLM keeps it for the like

    def prefills(self) -> list[Request]:
        """Those of them whose share of a step may be set."""
        return [
            request
            for request in self._scheduler._inflight_prefills  # noqa: SLF001 - as above
            if request.status is RequestStatus.RUNNING and not request.has_encoder_inputs
        ]

    def room(self) -> Room:
        """What is left."""
        return Room(
            slots_free=self.slots_free(),
            blocks_free=self.free_blocks(),
            step_tokens=self.step_tokens,
            chunk_tokens=self._chunk_tokens(),
            kv_tokens=self.kv_tokens(),
        )

    def slots_free(self) -> int:
        """Run slots that no request takes."""
        scheduler = self._scheduler
        taken = len(scheduler.running) + scheduler.num_waiting_for_streaming_input
        return max(0, int(scheduler.max_num_active_reqs - taken))

    def free_blocks(self) -> int:
        """KV blocks."""
        return int(self._scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def kv_tokens(self) -> int:
        """Tokens in the KV blocks that are in use."""
        used_blocks = (self.total_blocks - self.free_blocks()) // self.groups
        return int(used_blocks * self.block_tokens)

    def kv_usage_ratio(self) -> float:
        """Of the KV blocks, in [0, 1]."""
        return float(self._scheduler.kv_cache_manager.usage)

    def may_go(self, request: LiveRequest) -> bool:
        """Whether the request's blocks can be taken away before the next step."""
        return bool(self._scheduler._request_blocks_can_be_freed(request))  # noqa: SLF001 - vLLM asks itself

    def own_blocks(self, request: LiveRequest) -> int:
        """Blocks that only this request uses."""
        groups = self._scheduler.kv_cache_manager.get_blocks(request.request_id).blocks
        return sum(block.ref_cnt == 1 for group in groups for block in group)

    def held_blocks(self, request: LiveRequest) -> int:
        """Blocks that this request uses, without looking at each."""
        return -(-request.num_computed_tokens // self.block_tokens) * self.groups

    def memory_may_run_short(self) -> bool:
        """Whether a step could ask for more KV blocks than are free, at the very most."""
        per_group = -(-self.step_tokens // self.block_tokens) + len(self._scheduler.running)
        return self.free_blocks() < per_group * self.groups

    def _chunk_tokens(self) -> int:
        """How many tokens of a step vLLM gives to one prompt, as it is configured."""
        scheduler = self._scheduler
        threshold = int(scheduler.scheduler_config.long_prefill_token_threshold)
        requests = len(scheduler.running) + len(scheduler.waiting)
        if threshold <= 0 or requests <= 1:
            return self.step_tokens
        if scheduler.adaptive_long_prefill_threshold:
            return max(threshold, self.step_tokens // requests)
        return threshold
