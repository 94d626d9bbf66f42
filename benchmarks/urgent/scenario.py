"""Who is urgent, what fills the slots, and how the rounds alternate."""

from typing import NamedTuple

from benchmarks.plan import Arrival
from benchmarks.stack.engine import EngineSize, Scheduler
from dataplane.config import PreemptionSettings
from models.classes import Slo, TaskClass, Tier

URGENT, LONG = "urgent", "long"

CLASSES = (
    TaskClass(URGENT, Slo(ttft_s=1.0), value=10.0, tier=Tier.P0),
    TaskClass(LONG, Slo(ttft_s=120.0), value=1.0, tier=Tier.P2),
)
PRIORITIES = {URGENT: 0, LONG: 1}
"""For stock vLLM's ``priority`` policy, where small is urgent."""

SIZE = EngineSize(max_num_seqs=4)

URGENT_REQUEST = Arrival(0.0, URGENT, prompt_tokens=64, output_tokens=8)
LONG_REQUEST = Arrival(0.0, LONG, prompt_tokens=64, output_tokens=1000)
LONG_AT_A_TIME = 2 * SIZE.max_num_seqs
"""Half of them wait at any time: a slot that comes free is taken at once."""

STEP_S = 0.1
"""A step of this size on a slow core, with a prompt in it."""

URGENT_PER_ROUND = 4
APART_S = 6.0
"""Between two urgent requests: the slots are full of work that has run for a while."""


class Contender(NamedTuple):
    """One way to run the engine."""

    name: str
    scheduler: Scheduler


CONTENDERS = (Contender("trimtab", "trimtab"), Contender("stock priority", "stock-priority"))


def bound_s(alone_s: float) -> float:
    """The longest that the plugin lets an urgent request wait for its first token.

    A head that cannot wait preempts once a share of its slack is used up and something
    lighter has run for its quantum; from then on it is as on an idle engine. The engine
    notices at the end of a step, of which three are allowed for here.
    """
    settings = PreemptionSettings()
    slack_s = CLASSES[0].slo.ttft_s - alone_s
    return max(settings.patience_ratio * slack_s, settings.min_run_s) + 3 * STEP_S + alone_s


def rounds(pairs: int) -> list[Contender]:
    """ABBA, so that a machine that gets slower favours neither."""
    first, second = CONTENDERS
    order: list[Contender] = []
    for pair in range(pairs):
        order += [first, second] if pair % 2 == 0 else [second, first]
    return order
