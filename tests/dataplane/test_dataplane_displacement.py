"""Who gives way to whom, seen from the scheduler."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from loopback_control_plane import HandClock

from dataplane.admission import Admission
from dataplane.breaker import Breaker
from dataplane.config import BreakerSettings, PreemptionSettings, ReserveSettings
from dataplane.displacement import LOOK_EVERY_S, Displacement, Displacer
from dataplane.faults import FaultBarrier
from dataplane.intake import Intake
from dataplane.labels import ClassLabels
from dataplane.meter import Meter
from dataplane.reserve import KvReserve
from dataplane.room import Room
from dataplane.step_time import StepTimeModel
from dataplane.ticket import Ticket
from dataplane.weights import ClassPolicy, Discipline, Slo, Tier, WeightTable

VIP = ClassPolicy("vip", 8.0, 1.0, Slo(1.0), tier=Tier.P0)
BATCH = ClassPolicy("batch", 1.0, 1.0, Slo(60.0), tier=Tier.P2)
TABLE = WeightTable(
    epoch=1,
    version=1,
    ttl_s=60.0,
    mode="rule",
    discipline=Discipline.APQ,
    policies={"vip": VIP, "batch": BATCH},
)
FULL = Room(slots_free=0, blocks_free=1000, step_tokens=256, chunk_tokens=256, kv_tokens=0)
MODEL = StepTimeModel(0.01, 0.0001, 0.001, 0.0)


@dataclass
class Parameters:
    extra_args: Any
    max_tokens: int | None = 1000
    stop: Any = None


@dataclass
class LiveRequest:
    request_id: str
    sampling_params: Any
    arrival_time: float
    num_prompt_tokens: int = 64
    priority: int = 0
    lora_request: Any = None
    num_output_tokens: int = 10
    num_computed_tokens: int = 74


@dataclass
class Engine:
    """A displacer and the requests that it looks at."""

    clock: HandClock
    unfreeable: set[str] = field(default_factory=set)
    running: list[LiveRequest] = field(default_factory=list)
    heads: list[tuple[Ticket, ClassPolicy]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.meter = Meter()
        self.intake = Intake(
            meter=self.meter,
            labels=ClassLabels(4),
            table=lambda _: TABLE,
            barrier=FaultBarrier(),
            clock=self.clock,
        )
        self.displacer = Displacer(
            PreemptionSettings(),
            admission=Admission(
                Breaker(BreakerSettings()),
                KvReserve(ReserveSettings(), 1000),
                total_blocks=1000,
                block_tokens=16,
                groups=1,
            ),
            intake=self.intake,
            may_go=lambda request: request.request_id not in self.unfreeable,
            blocks_of=lambda _: 5,
        )

    def runs(self, name: str, policy: ClassPolicy) -> None:
        request = self._request(name, policy)
        self.meter.dispatched(self.intake.ticket_of(request), self.clock.now_s)
        self.running.append(request)

    def waits(self, name: str, policy: ClassPolicy) -> Ticket:
        ticket = self.intake.ticket_of(self._request(name, policy))
        self.heads.append((ticket, policy))
        return ticket

    def look(
        self, room: Room = FULL, *, after_s: float = 0.0, model: StepTimeModel = MODEL
    ) -> Displacement | None:
        self.clock.now_s += after_s
        return self.displacer.displace(
            self.heads,
            self.running,
            room=room,
            table=TABLE,
            model=model,
            now_s=self.clock.now_s,
        )

    def _request(self, name: str, policy: ClassPolicy) -> LiveRequest:
        return LiveRequest(name, Parameters({"task_class": policy.task_class}), self.clock.wall_s())


@pytest.fixture
def engine(clock: HandClock) -> Engine:
    engine = Engine(clock)
    for number in range(4):
        engine.runs(f"b{number}", BATCH)
    clock.now_s += 5.0
    return engine


def test_an_urgent_head_takes_the_place_of_light_work_once_half_its_slack_is_gone(
    engine: Engine,
) -> None:
    engine.waits("v", VIP)
    assert engine.look(after_s=0.3) is None
    found = engine.look(after_s=0.3)
    assert found is not None
    assert found.beneficiary == "v"
    assert [victim.request_id for victim in found.victims] == ["b3"]


def test_with_a_slot_and_memory_free_nobody_gives_way(engine: Engine) -> None:
    engine.waits("v", VIP)
    free = Room(slots_free=1, blocks_free=1000, step_tokens=256, chunk_tokens=256, kv_tokens=0)
    assert engine.look(free, after_s=0.9) is None


def test_memory_is_made_too(engine: Engine) -> None:
    engine.waits("v", VIP)
    low = Room(slots_free=1, blocks_free=0, step_tokens=256, chunk_tokens=256, kv_tokens=16000)
    found = engine.look(low, after_s=0.9)
    assert found is not None
    assert len(found.victims) * 5 >= 4  # 64 prompt tokens are four blocks.


def test_who_cannot_be_freed_now_stays(engine: Engine) -> None:
    engine.unfreeable = {"b1", "b2", "b3"}
    engine.waits("v", VIP)
    assert engine.look(after_s=0.9) is None


def test_unprotected_heads_displace_nobody(engine: Engine) -> None:
    engine.waits("b9", BATCH)
    assert engine.look(after_s=600.0) is None


def test_who_was_displaced_displaces_nobody(engine: Engine) -> None:
    engine.waits("v", VIP).displaced = 1
    assert engine.look(after_s=0.9) is None


def test_a_displaced_request_remembers_it(engine: Engine) -> None:
    engine.waits("v", VIP)
    found = engine.look(after_s=0.9)
    assert found is not None
    assert [engine.intake.ticket_of(victim).displaced for victim in found.victims] == [1]


def test_it_looks_now_and_then(engine: Engine) -> None:
    engine.look()
    assert not engine.displacer.due(engine.clock.now_s + LOOK_EVERY_S / 2)
    assert engine.displacer.due(engine.clock.now_s + 2 * LOOK_EVERY_S)


def test_a_model_that_knows_nothing_of_prompts_allows_no_recomputing(engine: Engine) -> None:
    engine.waits("v", VIP)
    assert engine.look(after_s=0.9, model=StepTimeModel(0.0, 0.0, 0.001, 0.0)) is None
