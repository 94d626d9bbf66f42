"""Which waiting heads may be admitted now: the breaker and the KV reserve decide."""

from dataplane.breaker import Breaker
from dataplane.reserve import KvReserve
from dataplane.ticket import Ticket
from dataplane.weights import ClassPolicy, Tier


class Admission:
    """The queue's gate. All calls come from the scheduler's thread.

    Args:
        total_blocks: KV blocks of the engine.
        block_tokens: tokens in one of them.
        groups: of layers with blocks of their own.
    """

    def __init__(
        self,
        breaker: Breaker,
        reserve: KvReserve,
        *,
        total_blocks: int,
        block_tokens: int,
        groups: int,
    ) -> None:
        self.breaker = breaker
        self.reserve = reserve
        self._total_blocks = total_blocks
        self._block_tokens = block_tokens
        self._groups = groups

    def need_blocks(self, ticket: Ticket) -> int:
        """KV blocks for all that is known of the request's sequence, without cached ones."""
        known_tokens = ticket.prompt_tokens + ticket.generated_tokens
        blocks = -(-known_tokens // self._block_tokens) * self._groups
        return min(blocks, self._total_blocks)

    def tier(self, policy: ClassPolicy, now_s: float) -> Tier:
        """The class's tier as the breaker sees it at this time."""
        return self.breaker.tier(policy.tier, now_s)

    def admits(
        self, ticket: Ticket, policy: ClassPolicy, *, free_blocks: int, running: int, now_s: float
    ) -> bool:
        """Whether this head may start, with so many blocks free and requests running."""
        if policy.tier is Tier.P0:
            return True
        age_s = now_s - ticket.arrived_s
        return self.breaker.admits(policy.tier, now_s, running=running) and self.reserve.admits(
            self.tier(policy, now_s),
            need_blocks=self.need_blocks(ticket),
            free_blocks=free_blocks,
            running=running,
            overdue=policy.max_wait_s is not None and age_s > policy.max_wait_s,
            now_s=now_s,
        )

    def could_start(
        self, ticket: Ticket, policy: ClassPolicy, *, free_blocks: int, running: int, now_s: float
    ) -> bool:
        """What ``admits`` would say and vLLM find, without taking note of the question."""
        if running and policy.tier > Tier.P1 and self.breaker.retry_after_s(now_s):
            return False
        return not self.lacking_blocks(ticket, policy, free_blocks=free_blocks, now_s=now_s)

    def lacking_blocks(
        self, ticket: Ticket, policy: ClassPolicy, *, free_blocks: int, now_s: float
    ) -> int:
        """Blocks that the head needs beyond those that it may take; 0: it has enough."""
        allowed = free_blocks - self.reserve.withheld_blocks(self.tier(policy, now_s))
        return max(0, self.need_blocks(ticket) - allowed)
