"""A fleet by its definition: lists, searched through and counted anew in each step.

Who goes next and how a step's tokens are shared, the plugin itself says: its queue, its
shares and its cap decide here. So agreement with the simulator, to the last bit of every
time, is agreement in each of these decisions.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request as VllmRequest

from dataplane.budget import Pace, PrefillCap, RunningPrefill, WaitingPrompts, plan_prefill
from dataplane.faults import FaultBarrier
from dataplane.queue import ClassRequestQueue
from dataplane.step_time import StepTimeModel
from dataplane.ticket import Ticket
from dataplane.weights import ClassPolicy, LatePolicy, Slo, Tier, WeightTable
from dataplane.weights import Discipline as PluginDiscipline
from models.classes import TaskClass
from training.simulator.model import Balancer, Discipline, Fleet, Shaping
from training.simulator.scene import Measurement
from training.simulator.step import EMPTY_STEP_S
from training.simulator.workload import Workload

PARAMETERS = SamplingParams(max_tokens=1)
TIERS = {"p0": Tier.P0, "p1": Tier.P1, "p2": Tier.P2}


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
    cap: PrefillCap = field(default_factory=PrefillCap)
    admissions: int = 0

    def __post_init__(self) -> None:
        self.barrier = FaultBarrier()
        self.queue = ClassRequestQueue(
            lambda request: self.requests[request.request_id].ticket, self.barrier
        )

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
        budget, allowed = self.plan(table, now_s)
        load = self.run_running(budget, allowed, tick)
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

    def plan(self, table: WeightTable, now_s: float) -> tuple[int, dict[str, int]]:
        engine = self.fleet.engine
        stock = self.fleet.discipline is Discipline.FCFS
        short = self.free_blocks < self.blocks(engine.step_tokens) + len(self.running)
        if short and not stock:
            self.running.sort(key=lambda one: -self.policy(one, table).weight)
        if stock or self.fleet.shaping is Shaping.STOCK:
            return engine.step_tokens, {}
        prefills = [one for one in self.running if one.left > 0]
        own = [
            RunningPrefill(
                one.ticket.request_id,
                one.ticket.task_class,
                self.policy(one, table).weight,
                min(one.left, self.chunk),
                one.ticket.admission,
            )
            for one in prefills
        ]
        waiting = self.able()
        if not own and not waiting:
            return engine.step_tokens, {}
        decoding = len(self.running) - len(prefills)
        full = tokens = max(0, engine.step_tokens - decoding)
        if self.fleet.shaping is Shaping.SHAPED:
            demand = sum(one.tokens for one in own)
            demand += sum(one.ticket.prompt_tokens for one in self.waiting)
            tokens = self.cap.tokens(
                model=self.step_time,
                paces=self.paces(now_s),
                decoding=decoding,
                kv_tokens=(engine.kv_blocks - self.free_blocks) * engine.block_tokens,
                full_tokens=full,
                demand_tokens=demand,
                now_s=now_s,
            )
        plan = plan_prefill(budget_tokens=tokens, prefills=own, waiting=waiting)
        return engine.step_tokens - full + tokens if tokens < full else engine.step_tokens, plan

    def able(self) -> list[WaitingPrompts]:
        slots_free = self.fleet.engine.slots - len(self.running)
        if not slots_free:
            return []
        able = []
        for ticket, policy in self.queue.heads():
            if self.blocks(self.requests[ticket.request_id].known) <= self.free_blocks:
                own = [one for one in self.waiting if one.ticket.task_class == ticket.task_class]
                wanted = sum(one.ticket.prompt_tokens for one in own)
                most = len(own) * self.chunk
                able.append(WaitingPrompts(ticket.task_class, policy.weight, min(wanted, most)))
        return sorted(able, key=lambda one: -one.weight)[:slots_free]

    def paces(self, now_s: float) -> list[Pace]:
        paces = []
        for one in self.running:
            kind = self.classes[one.kind]
            protected = TIERS[kind.tier.value] <= Tier.P1
            if protected and kind.slo.tpot_s and one.ticket.first_token_s is not None:
                tokens = one.ticket.generated_tokens
                paces.append(Pace.of(kind.slo.tpot_s, one.ticket.first_token_s, tokens, now_s))
        return paces

    def run_running(self, budget: int, allowed: dict[str, int], tick: int) -> "Load":
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
        request.computed = 0
        request.ticket.preemptions += 1
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
            if request.ticket.dispatched_s is None:
                request.ticket.dispatched_s = now_s
            self.admissions += 1
            request.ticket.admission = self.admissions
            load.take(chunk, 0, prompt=True)
            self.compute(request, chunk)

    def compute(self, request: Request, tokens: int) -> None:
        request.computed += tokens
        request.sampled = request.computed >= request.target

    @property
    def step_time(self) -> StepTimeModel:
        engine = self.fleet.engine
        return StepTimeModel(
            engine.base_s,
            engine.prefill_s_per_token,
            engine.decode_s_per_sequence,
            engine.kv_s_per_token,
        )

    def time_s(self, load: "Load") -> float:
        if not load.prefill + load.decoding:
            return EMPTY_STEP_S
        engine = self.fleet.engine
        kv_tokens = (engine.kv_blocks - self.free_blocks) * engine.block_tokens
        linear_s = self.step_time.time_s(load.prefill, load.decoding, kv_tokens)
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


def table_of(fleet: Fleet, classes: tuple[TaskClass, ...], row: NDArray[np.float64]) -> WeightTable:
    """The snapshot that the control plane would send."""
    policies = {
        one.name: ClassPolicy(
            one.name,
            float(weight),
            1.0,
            Slo(one.slo.ttft_s, one.slo.tpot_s, one.slo.e2e_s),
            one.value,
            LatePolicy(one.late.value),
            one.max_wait_s,
            TIERS[one.tier.value],
        )
        for one, weight in zip(classes, row, strict=True)
    }
    return WeightTable(
        epoch=1,
        version=1,
        ttl_s=math.inf,
        mode="rule",
        discipline=PluginDiscipline(fleet.discipline.value),
        policies=policies,
    )


@dataclass
class ObviousRun:
    requests: list[Request]
    series: NDArray[np.float64]


def simulate_obviously(
    fleet: Fleet, workload: Workload, weights: NDArray[np.float64]
) -> ObviousRun:
    requests = [_request(fleet, workload, number) for number in range(len(workload))]
    series = np.zeros((len(weights), len(workload.classes), len(Measurement)))
    by_id = {one.ticket.request_id: one for one in requests}
    engines = [Engine(fleet, workload.classes, by_id, series) for _ in range(fleet.engines)]
    coming = list(requests)
    for tick, row in enumerate(weights):
        table = table_of(fleet, workload.classes, row)
        end_s = (tick + 1) * fleet.tick_s
        while True:
            engine = min(engines, key=lambda one: one.ready_s)
            arrives_s = coming[0].ticket.arrived_s if coming else math.inf
            if min(arrives_s, engine.ready_s) >= end_s:
                break
            if arrives_s <= engine.ready_s:
                _arrive(coming.pop(0), engines, tick, fleet.balancer)
            else:
                engine.step(table, tick, engine.ready_s)
        _read_gauges(engines, workload.classes, series[tick], end_s)
    return ObviousRun(requests, series)


def _request(fleet: Fleet, workload: Workload, number: int) -> Request:
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


def _arrive(request: Request, engines: list[Engine], tick: int, balancer: Balancer) -> None:
    engine = engines[request.number % len(engines)]
    if balancer is Balancer.LEAST_LOADED:
        engine = min(engines, key=lambda one: one.load)
    engine.queue.add_request(request.vllm)
    engine.count(request, Measurement.ARRIVED, tick)
    engine.count(request, Measurement.PROMPT_TOKENS, tick, request.ticket.prompt_tokens)
    if math.isinf(engine.ready_s):
        engine.ready_s = request.ticket.arrived_s


def _read_gauges(
    engines: list[Engine],
    classes: tuple[TaskClass, ...],
    gauges: NDArray[np.float64],
    now_s: float,
) -> None:
    for kind, one in enumerate(classes):
        waiting = [
            request.ticket
            for engine in engines
            for request in engine.waiting
            if request.kind == kind
        ]
        gauges[kind, Measurement.WAITING] = len(waiting)
        gauges[kind, Measurement.RUNNING] = sum(
            request.kind == kind for engine in engines for request in engine.running
        )
        gauges[kind, Measurement.WAITING_PAST_SLO] = sum(
            ticket.dispatched_s is None and now_s > ticket.arrived_s + one.slo.ttft_s
            for ticket in waiting
        )
        gauges[kind, Measurement.OLDEST_WAIT_S] = now_s - min(
            [
                engine.queue.oldest_arrival_s(one.name)
                for engine in engines
                if engine.queue.oldest_arrival_s(one.name) is not None
            ],
            default=now_s,
        )
