"""The KV reserve: blocks that stay free for better tiers.

vLLM admits a prompt as soon as its blocks are free, so a long prompt of an unprotected class
takes the blocks that the next protected request needs, for as long as it runs. The reserve
of tier p is what p is used to, less what it has:

    reserve_p = max(0, factor_p * mean_p - held_p)

held_p being the blocks that p's running requests hold, and mean_p its mean over the past
with weights that halve every ``half_life_s``. A head of tier q is admitted when the reserves
of all better tiers fit into what it leaves free. A tier without traffic is used to nothing
after a while: blocks lie idle only while protected traffic is real.
"""

from collections.abc import Sequence

from dataplane.config import ReserveSettings
from dataplane.weights import Tier


class KvReserve:
    """Decides in O(tiers). All calls come from the scheduler's thread.

    Args:
        total_blocks: KV blocks of the engine.

    Attributes:
        held_back: times that a tier began to be held back.
        let_through: times that a tier was let through after ``max_hold_s``.
    """

    def __init__(self, settings: ReserveSettings, total_blocks: int) -> None:
        self._settings = settings
        self._factors = (settings.factor_p0, settings.factor_p1, settings.factor_p2)
        self._cap_blocks = settings.max_share * total_blocks
        self._observed_s: float | None = None
        self._held_blocks: Sequence[int] = (0,) * len(Tier)
        self._mean_blocks = [0.0] * len(self._factors)
        self._withheld_blocks = [0] * len(Tier)
        self._held_since_s: list[float | None] = [None] * len(Tier)
        self.held_back = dict.fromkeys(Tier, 0)
        self.let_through = dict.fromkeys(Tier, 0)

    def observe(self, held_blocks: Sequence[int], now_s: float) -> None:
        """Take note of the blocks that running requests hold, by tier; from time to time.

        The blocks seen last count until now: how often this is called changes no mean.
        """
        elapsed_s = 0.0 if self._observed_s is None else now_s - self._observed_s
        kept = 0.5 ** (elapsed_s / self._settings.half_life_s)
        reserve_blocks = 0.0
        for tier, factor in enumerate(self._factors):
            before = self._held_blocks[tier]
            mean = before + (self._mean_blocks[tier] - before) * kept
            self._mean_blocks[tier] = mean
            reserve_blocks += max(0.0, factor * mean - held_blocks[tier])
            self._withheld_blocks[tier + 1] = int(min(reserve_blocks, self._cap_blocks))
        self._held_blocks, self._observed_s = held_blocks, now_s

    def withheld_blocks(self, tier: Tier) -> int:
        """Free blocks that this tier may not take, as of the last observation; 0 for P0."""
        return self._withheld_blocks[tier] if self._settings.enabled else 0

    def admits(
        self,
        tier: Tier,
        *,
        need_blocks: int,
        free_blocks: int,
        running: int,
        overdue: bool,
        now_s: float,
    ) -> bool:
        """Whether a head of this tier may take its blocks; whether they are there, vLLM says.

        Never held back: P0, a head when nothing runs, and one that is overdue, past its class's
        ``max_wait_s``. A tier held back for ``max_hold_s`` has its head let through, and the
        time starts again: it is slowed down, but never starved.
        """
        withheld_blocks = self.withheld_blocks(tier)
        leaves_enough = withheld_blocks == 0 or free_blocks - need_blocks >= withheld_blocks
        if leaves_enough or overdue or not running:
            self._held_since_s[tier] = None
            return True
        since_s = self._held_since_s[tier]
        if since_s is None:
            self._held_since_s[tier] = now_s
            self.held_back[tier] += 1
            return False
        if now_s - since_s < self._settings.max_hold_s:
            return False
        # Until its blocks are there it keeps its turn.
        if need_blocks <= free_blocks:
            self._held_since_s[tier] = None
            self.let_through[tier] += 1
        return True
