"""A fleet by its definition: lists, searched through and counted anew in each step.

Who goes next, who gives way and how a step's tokens are spent, the plugin itself says: its
queue, its displacer and its shaping decide here. So agreement with the simulator, to the
last bit of every time, is agreement in each of these decisions.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import cast

import numpy as np
from numpy.typing import NDArray
from plugin_terms import Running, Tickets, step_time_model
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request as VllmRequest

from dataplane.admission import Admission
from dataplane.breaker import Breaker
from dataplane.config import BreakerSettings, PreemptionSettings, ReserveSettings
from dataplane.displacement import Displacement, Displacer
from dataplane.faults import FaultBarrier
from dataplane.intake import Intake
from dataplane.meter import Meter, Outcome
from dataplane.queue import ClassRequestQueue
from dataplane.reserve import KvReserve
from dataplane.room import Room
from dataplane.shaping import UNLIMITED, StepPlan
from dataplane.shaping import Shaping as DataplaneShaping
from dataplane.ticket import Ticket
from dataplane.weights import ClassPolicy, WeightTable
from models.classes import TaskClass
from training.simulator.model import Discipline, Fleet, Shaping
from training.simulator.scene import Measurement
from training.simulator.step import EMPTY_STEP_S
from training.simulator.workload import Workload

PARAMETERS = SamplingParams(max_tokens=1)


@dataclass(eq=False)
class Request:
    number: int
    kind: int
    output_tokens: int
    ticket: Ticket
    vllm: VllmRequest
    computed: int = 0
    target: int = 0
    sampled: bool = False
    finished_s: float = math.nan

    @property
    def known(self) -> int:
        return self.ticket.prompt_tokens + self.ticket.generated_tokens

    @property
    def left(self) -> int:
        return self.target - self.computed


@dataclass(eq=False)
class Engine:
    fleet: Fleet
    classes: tuple[TaskClass, ...]
    requests: dict[str, Request]
    series: NDArray[np.float64]
    ready_s: float = math.inf
    running: list[Request] = field(default_factory=list)
    meter: Meter = field(default_factory=Meter)

    def __post_init__(self) -> None:
        self.barrier = FaultBarrier()
        self.queue = ClassRequestQueue(
            lambda request: self.requests[request.request_id].ticket, self.barrier
        )

        preemption = self.fleet.preemption
        settings = PreemptionSettings(enabled=False)
        if preemption is not None:
            settings = PreemptionSettings(**asdict(preemption))
        engine = self.fleet.engine
        tickets = {name: request.ticket for name, request in self.requests.items()}
        intake = cast("Intake", Tickets(tickets))
        admission = Admission(
            Breaker(BreakerSettings(enabled=False)),
            KvReserve(ReserveSettings(enabled=False), engine.kv_blocks),
            total_blocks=engine.kv_blocks,
            block_tokens=engine.block_tokens,
            groups=1,
        )
        self.displacer = Displacer(
            settings,
            admission=admission,
            intake=intake,
            may_go=lambda _: True,
            blocks_of=lambda one: self.blocks(one.num_computed_tokens),
        )
        self.shaping = DataplaneShaping(
            tokens_per_decode=1, admission=admission, intake=intake, meter=self.meter
        )

    def add(self, request: Request) -> None:
        self.meter.arrived(request.ticket)
        self.queue.add_request(request.vllm)

    @property
    def load(self) -> int:
        return len(self.queue) + len(self.running)

    @property
    def free_blocks(self) -> int:
        used = sum(self.blocks(request.computed) for request in self.running)
        return self.fleet.engine.kv_blocks - used

    @property
    def waiting(self) -> list[Request]:
        return [self.requests[request.request_id] for request in self.queue]

    @property
    def room(self) -> Room:
        engine = self.fleet.engine
        return Room(
            slots_free=engine.slots - len(self.running),
            blocks_free=self.free_blocks,
            step_tokens=engine.step_tokens,
            chunk_tokens=self.chunk,
            kv_tokens=(engine.kv_blocks - self.free_blocks) * engine.block_tokens,
        )

    @property
    def roomy(self) -> bool:
        """Whether there is a slot, and memory for the longest sequence."""
        longest = self.blocks(self.fleet.engine.most_tokens)
        return self.room.slots_free > 0 and self.free_blocks >= longest

    @property
    def chunk(self) -> int:
        engine = self.fleet.engine
        return engine.chunk_tokens if engine.chunk_tokens and self.load > 1 else engine.step_tokens

    def blocks(self, tokens: int) -> int:
        return math.ceil(tokens / self.fleet.engine.block_tokens)

    def step(self, table: WeightTable, tick: int, now_s: float) -> None:
        for request in [one for one in self.running if one.sampled]:
            self.take_token(request, tick, now_s)
        if not self.load:
            self.ready_s = math.inf
            return
        self.queue.begin_step(table, now_s)
        self.order_running(table)
        plan = UNLIMITED
        if not self.displace(table, tick, now_s):
            plan = self.plan(table, now_s)
        budget = plan.tokens or self.fleet.engine.step_tokens
        load = self.run_running(budget, plan.prefill_tokens, tick)
        if not load.preempted:
            self.run_waiting(load, now_s)
        self.queue.end_step()
        assert not self.barrier.faults
        assert self.free_blocks >= 0
        self.ready_s = now_s + self.time_s(load)

    def take_token(self, request: Request, tick: int, now_s: float) -> None:
        request.sampled, ticket = False, request.ticket
        ticket.generated_tokens += 1
        self.count(request, Measurement.GENERATED_TOKENS, tick)
        if ticket.first_token_s is None:
            ticket.first_token_s = now_s
            self.count(request, Measurement.FIRST_TOKENS, tick)
            self.count(request, Measurement.TTFT_SUM_S, tick, now_s - ticket.arrived_s)
        if ticket.generated_tokens == request.output_tokens:
            request.finished_s = now_s
            self.running.remove(request)
            self.meter.finished(ticket, Outcome.MET, now_s)
            self.queue.ended(ticket)
            self.count(request, Measurement.FINISHED, tick)
            self.count(request, Measurement.VIOLATED, tick, not self.met(request))

    def met(self, request: Request) -> bool:
        slo, ticket = self.classes[request.kind].slo, request.ticket
        assert ticket.first_token_s is not None
        e2e_s, more = request.finished_s - ticket.arrived_s, ticket.generated_tokens - 1
        return (
            ticket.first_token_s - ticket.arrived_s <= slo.ttft_s
            and (slo.e2e_s is None or e2e_s <= slo.e2e_s)
            and (
                slo.tpot_s is None
                or not more
                or (request.finished_s - ticket.first_token_s) / more <= slo.tpot_s
            )
        )

    def order_running(self, table: WeightTable) -> None:
        short = self.free_blocks < self.blocks(self.fleet.engine.step_tokens) + len(self.running)
        if short and self.fleet.discipline is not Discipline.FCFS:
            self.running.sort(key=lambda one: -self.policy(one, table).weight)

    def displace(self, table: WeightTable, tick: int, now_s: float) -> bool:
        stock = self.fleet.discipline is Discipline.FCFS
        if stock or not len(self.queue) or not self.displacer.due(now_s) or self.roomy:
            return False
        displacement = self.displacement(table, now_s)
        if displacement is None:
            return False
        for victim in displacement.victims:
            self.preempt(self.requests[victim.request_id], tick)
        self.queue.pin(displacement.beneficiary)
        return True

    def displacement(self, table: WeightTable, now_s: float) -> Displacement | None:
        return self.displacer.displace(
            self.queue.heads(),
            self.seen(self.running),
            room=self.room,
            table=table,
            model=step_time_model(self.fleet.engine),
            now_s=now_s,
        )

    def plan(self, table: WeightTable, now_s: float) -> StepPlan:
        if self.fleet.discipline is Discipline.FCFS or self.fleet.shaping is Shaping.STOCK:
            return UNLIMITED
        prefills = [one for one in self.running if one.left > 0]
        may_admit = len(self.queue) and self.room.slots_free
        if not prefills and not may_admit:
            return UNLIMITED
        # What nothing is known of is not capped: then only shares are left.
        capped = self.fleet.shaping is Shaping.SHAPED
        return self.shaping.plan(
            self.seen(prefills),
            self.seen(self.running),
            self.queue.heads() if may_admit else (),
            room=self.room,
            table=table,
            model=step_time_model(self.fleet.engine) if capped else None,
            now_s=now_s,
        )

    def seen(self, requests: list[Request]) -> list[Running]:
        return [Running(one.ticket, one.computed) for one in requests]

    def run_running(self, budget: int, allowed: Mapping[str, int], tick: int) -> "Load":
        load, position = Load(budget), 0
        while position < len(self.running) and load.budget > 0:
            request = self.running[position]
            prompt = request.left > 0
            most = allowed.get(request.ticket.request_id, self.chunk) if prompt else 1
            tokens = min(request.left if prompt else 1, self.chunk, most, load.budget)
            if tokens:
                while self.growth(request, tokens) > self.free_blocks:
                    load.preempted = True
                    self.preempt(self.running[-1], tick)
                    if request not in self.running:
                        return load
                load.take(tokens, request.computed, prompt=prompt)
                self.compute(request, tokens)
            position += 1
        return load

    def growth(self, request: Request, tokens: int) -> int:
        return self.blocks(request.computed + tokens) - self.blocks(request.computed)

    def preempt(self, request: Request, tick: int) -> None:
        self.running.remove(request)
        self.count(request, Measurement.PREEMPTIONS, tick)
        self.count(request, Measurement.RECOMPUTED_TOKENS, tick, request.computed)
        self.meter.preempted(request.ticket, request.computed)
        request.computed = 0
        self.queue.prepend_request(request.vllm)

    def run_waiting(self, load: "Load", now_s: float) -> None:
        while load.budget > 0 and len(self.running) < self.fleet.engine.slots and self.queue:
            request = self.requests[self.queue.peek_request().request_id]
            if self.blocks(request.known) > self.free_blocks:
                return
            chunk = min(request.known, self.chunk, load.budget)
            assert self.queue.pop_request() is request.vllm
            self.running.append(request)
            request.target = request.known
            self.meter.dispatched(request.ticket, now_s)
            load.take(chunk, 0, prompt=True)
            self.compute(request, chunk)

    def compute(self, request: Request, tokens: int) -> None:
        request.computed += tokens
        request.sampled = request.computed >= request.target

    def time_s(self, load: "Load") -> float:
        if not load.prefill + load.decoding:
            return EMPTY_STEP_S
        engine = self.fleet.engine
        linear_s = step_time_model(self.fleet.engine).time_s(
            load.prefill, load.decoding, self.room.kv_tokens
        )
        return linear_s + engine.chunk_context_s * load.chunk_context

    def policy(self, request: Request, table: WeightTable) -> ClassPolicy:
        return table.policy(request.ticket.task_class)

    def count(self, request: Request, what: Measurement, tick: int, much: float = 1) -> None:
        self.series[tick, request.kind, what] += much


@dataclass
class Load:
    budget: int
    prefill: int = 0
    decoding: int = 0
    chunk_context: int = 0
    preempted: bool = False

    def take(self, tokens: int, computed: int, *, prompt: bool) -> None:
        self.budget -= tokens
        if prompt:
            self.prefill += tokens
            self.chunk_context += tokens * computed
        else:
            self.decoding += 1


def request_of(fleet: Fleet, workload: Workload, number: int) -> Request:
    request_id, kind = f"r{number}", int(workload.class_index[number])
    output_tokens = int(workload.output_tokens[number])
    ticket = Ticket(
        request_id,
        workload.classes[kind].name,
        float(workload.arrival_s[number]),
        prompt_tokens=int(workload.prompt_tokens[number]),
        max_tokens=output_tokens if fleet.declares_output else None,
    )
    vllm = VllmRequest(request_id, [1], PARAMETERS, None, arrival_time=0.0)
    return Request(number, kind, output_tokens, ticket, vllm)
