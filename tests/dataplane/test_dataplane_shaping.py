"""What the plan of a step says, seen from the scheduler."""

from dataclasses import dataclass
from typing import Any

import pytest
from loopback_control_plane import HandClock

from dataplane.admission import Admission
from dataplane.breaker import Breaker
from dataplane.config import BreakerSettings, ReserveSettings
from dataplane.faults import FaultBarrier
from dataplane.intake import Intake
from dataplane.labels import ClassLabels
from dataplane.meter import Meter
from dataplane.reserve import KvReserve
from dataplane.room import Room
from dataplane.shaping import UNLIMITED, Shaping, StepPlan
from dataplane.step_time import StepTimeModel
from dataplane.ticket import Ticket
from dataplane.weights import ClassPolicy, Discipline, Slo, Tier, WeightTable

VIP = ClassPolicy("vip", 8.0, 1.0, Slo(1.0, tpot_s=0.05), tier=Tier.P0)
LONG = ClassPolicy("long", 1.0, 1.0, Slo(10.0), tier=Tier.P2)
TABLE = WeightTable(
    epoch=1,
    version=1,
    ttl_s=60.0,
    mode="rule",
    discipline=Discipline.APQ,
    policies={"vip": VIP, "long": LONG},
)
ROOM = Room(slots_free=4, blocks_free=1000, step_tokens=256, chunk_tokens=256, kv_tokens=0)
SLOW = StepTimeModel(0.001, 0.001, 0.0, 0.0)


@dataclass
class Parameters:
    extra_args: Any
    max_tokens: int | None = None
    stop: Any = None


@dataclass
class LiveRequest:
    request_id: str
    sampling_params: Any
    num_prompt_tokens: int
    num_tokens: int
    arrival_time: float = 0.0
    priority: int = 0
    lora_request: Any = None
    num_output_tokens: int = 0
    num_computed_tokens: int = 0


class Step:
    """A shaping and the requests that it looks at."""

    def __init__(self, clock: HandClock) -> None:
        self.meter = Meter()
        self.intake = Intake(
            meter=self.meter,
            labels=ClassLabels(4),
            table=lambda _: TABLE,
            barrier=FaultBarrier(),
            clock=clock,
        )
        admission = Admission(
            Breaker(BreakerSettings()),
            KvReserve(ReserveSettings(), 1000),
            total_blocks=1000,
            block_tokens=16,
            groups=1,
        )
        self.shaping = Shaping(
            tokens_per_decode=1, admission=admission, intake=self.intake, meter=self.meter
        )
        self.clock = clock
        self.running: list[LiveRequest] = []
        self.heads: list[tuple[Ticket, ClassPolicy]] = []

    def request(self, name: str, policy: ClassPolicy, tokens: int) -> LiveRequest:
        parameters = Parameters({"task_class": policy.task_class})
        return LiveRequest(name, parameters, tokens, tokens, self.clock.wall_s())

    def runs(self, name: str, policy: ClassPolicy, tokens: int, output_tokens: int = 0) -> None:
        request = self.request(name, policy, tokens)
        ticket = self.intake.ticket_of(request)
        self.meter.dispatched(ticket, self.clock.now_s)
        if output_tokens:
            request.num_output_tokens = output_tokens
            request.num_computed_tokens = tokens
            self.meter.first_token(ticket, self.clock.now_s)
        self.running.append(request)

    def waits(self, name: str, policy: ClassPolicy, tokens: int) -> None:
        self.heads.append((self.intake.ticket_of(self.request(name, policy, tokens)), policy))

    def plan(self, room: Room = ROOM, model: StepTimeModel | None = None) -> StepPlan:
        return self.shaping.plan(
            [request for request in self.running if not request.num_output_tokens],
            self.running,
            self.heads,
            room=room,
            table=TABLE,
            model=model,
            now_s=self.clock.now_s,
        )


@pytest.fixture
def step(clock: HandClock) -> Step:
    return Step(clock)


def test_without_prompts_nothing_is_limited(step: Step) -> None:
    step.runs("d", VIP, 10, output_tokens=3)
    assert step.plan() == UNLIMITED


def test_a_long_prompt_alone_gets_the_whole_step(step: Step) -> None:
    step.runs("l", LONG, 4000)
    assert step.plan().prefill_tokens == {"l": 256}


def test_a_running_long_prompt_leaves_a_waiting_class_its_share(step: Step) -> None:
    step.runs("l", LONG, 4000)
    step.waits("v", VIP, 100)
    assert step.plan().prefill_tokens == {"l": 156}


def test_without_a_free_slot_nothing_is_left_to_those_who_wait(step: Step) -> None:
    step.runs("l", LONG, 4000)
    step.waits("v", VIP, 100)
    full = Room(slots_free=0, blocks_free=1000, step_tokens=256, chunk_tokens=256, kv_tokens=0)
    assert step.plan(full).prefill_tokens == {"l": 256}


def test_without_memory_for_it_nothing_is_left_to_a_head(step: Step) -> None:
    step.runs("l", LONG, 4000)
    step.waits("v", VIP, 100)
    full = Room(slots_free=4, blocks_free=1, step_tokens=256, chunk_tokens=256, kv_tokens=0)
    assert step.plan(full).prefill_tokens == {"l": 256}


def test_what_vllm_gives_one_prompt_at_most_leaves_the_rest_to_the_next(step: Step) -> None:
    step.runs("l1", LONG, 4000)
    step.runs("l2", LONG, 4000)
    room = Room(slots_free=4, blocks_free=1000, step_tokens=256, chunk_tokens=64, kv_tokens=0)
    assert step.plan(room).prefill_tokens == {"l1": 64, "l2": 64}


def test_decodes_keep_their_tokens(step: Step) -> None:
    step.runs("l", LONG, 4000)
    for number in range(6):
        step.runs(f"d{number}", LONG, 10, output_tokens=1)
    assert step.plan().prefill_tokens == {"l": 250}


def test_a_step_is_capped_for_the_pace_of_a_protected_decode(step: Step) -> None:
    """256 tokens take a quarter of a second here, and the decode is due in 0.05 s."""
    step.runs("d", VIP, 10, output_tokens=1)
    step.runs("l", LONG, 100)
    step.plan(model=SLOW)
    step.clock.now_s += 0.05  # The credit that capping is paid from grows with time.
    plan = step.plan(model=SLOW)
    assert plan.tokens is not None
    assert plan.tokens < 100
    assert plan.prefill_tokens["l"] == plan.tokens - 1
    assert step.shaping.cap.capped_steps == 1


def test_no_step_is_capped_for_a_decode_of_an_unprotected_class(step: Step) -> None:
    step.runs("d", LONG, 10, output_tokens=1)
    step.runs("l", LONG, 100)
    assert step.plan(model=SLOW).tokens is None
