"""The queue against vLLM's own and against a slow, obvious model of accumulating priority."""

from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.request_queue import FCFSRequestQueue
from vllm.v1.request import Request

from dataplane.faults import FaultBarrier
from dataplane.queue import ClassRequestQueue
from dataplane.ticket import Ticket
from dataplane.weights import ClassPolicy, Discipline, LatePolicy, Slo, WeightTable

CLASSES = ("a", "b", "c", "d")


def vllm_request(request_id: str) -> Request:
    return Request(request_id, [1], SamplingParams(max_tokens=1), None, arrival_time=0.0)


def table(discipline: Discipline, policies: dict[str, ClassPolicy]) -> WeightTable:
    return WeightTable(
        epoch=1, version=1, ttl_s=60.0, mode="rule", discipline=discipline, policies=policies
    )


policies = st.builds(
    ClassPolicy,
    task_class=st.just("k"),
    weight=st.sampled_from([0.1, 1.0, 7.0]),
    default_weight=st.just(1.0),
    slo=st.sampled_from([0.5, 2.0, 20.0]).map(Slo),
    late=st.sampled_from(LatePolicy),
    max_wait_s=st.none() | st.sampled_from([1.0, 5.0]),
)
tables = st.builds(
    table,
    st.sampled_from(Discipline),
    st.fixed_dictionaries({}, optional=dict.fromkeys(CLASSES, policies)),
)


def obvious_choice(waiting: list[Ticket], weights: WeightTable, now_s: float) -> Ticket:
    """Accumulating priority by its definition, over all that waits, in order of place."""
    best: tuple[tuple[int, float], Ticket] | None = None
    for task_class in {ticket.task_class for ticket in waiting}:
        policy = weights.policy(task_class)
        members = [ticket for ticket in waiting if ticket.task_class == task_class]
        late = [
            ticket
            for ticket in members
            if policy.late is LatePolicy.DEMOTE
            and ticket.dispatched_s is None
            and now_s - ticket.arrived_s > policy.slo.ttft_s
        ]
        in_time = [ticket for ticket in members if ticket not in late]
        for group, rank in ((in_time, 1), (late, 0)):
            for head in group[:1]:
                age_s = now_s - head.arrived_s
                score = (rank, policy.weight / policy.slo.ttft_s * age_s)
                if policy.max_wait_s is not None and age_s > policy.max_wait_s:
                    score = (2, age_s - policy.max_wait_s)
                if best is None or (score, -head.place) > (best[0], -best[1].place):
                    best = (score, head)
    assert best is not None
    return best[1]


class QueueMachine(RuleBasedStateMachine):
    """Drives the queue as vLLM's scheduler does; ``self.order`` is the truth about places."""

    @initialize(names=st.permutations(CLASSES))
    def start(self, names: list[str]) -> None:
        self.names = names
        self.now_s = 0.0
        self.tickets: dict[str, Ticket] = {}
        self.order: list[Request] = []
        self.running: list[Request] = []
        self.barrier = FaultBarrier()
        self.queue = ClassRequestQueue(
            lambda request: self.tickets[request.request_id], self.barrier
        )

    @rule(seconds=st.sampled_from([0.1, 1.0, 4.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(name=st.integers(0, 3))
    def a_request_arrives(self, name: int) -> None:
        request = vllm_request(f"r{len(self.tickets)}")
        self.tickets[request.request_id] = Ticket(request.request_id, self.names[name], self.now_s)
        self.queue.add_request(request)
        self.order.append(request)

    @rule(weights=tables, skips=st.lists(st.booleans(), max_size=6))
    def a_step_runs(self, weights: WeightTable, skips: list[bool]) -> None:
        stock = FCFSRequestQueue(self.order)
        self.queue.begin_step(weights, self.now_s)
        skipped: deque[Request] = deque()
        taken: set[str] = set()
        for skip in skips[: len(self.order)]:
            request = self.queue.peek_request()
            assert self.queue.pop_request() is request
            if weights.discipline is Discipline.FCFS:
                assert stock.pop_request() is request
            else:
                left = [
                    self.tickets[other.request_id]
                    for other in self.order
                    if other.request_id not in taken
                ]
                choice = obvious_choice(left, weights, self.now_s)
                assert choice.request_id == request.request_id
            taken.add(request.request_id)
            if skip:
                skipped.appendleft(request)
            else:
                self._admit(request)
        self.queue.prepend_requests(skipped)
        self.queue.end_step()
        if weights.discipline is Discipline.FCFS:
            stock.prepend_requests(skipped)
            assert list(stock) == self.order

    @precondition(lambda self: self.running)
    @rule(count=st.integers(1, 3))
    def running_requests_are_preempted(self, count: int) -> None:
        for _ in range(min(count, len(self.running))):
            request = self.running.pop()
            self.queue.prepend_request(request)
            self.order.insert(0, request)

    @rule(data=st.data())
    def requests_are_aborted(self, data: st.DataObject) -> None:
        victims = data.draw(st.lists(st.sampled_from([*self.order, *self.running, None])))
        doomed = [victim for victim in victims if victim is not None]
        self.queue.remove_requests(doomed)
        self.order = [request for request in self.order if request not in doomed]
        self.running = [request for request in self.running if request not in doomed]

    @invariant()
    def nothing_is_lost_doubled_or_out_of_place(self) -> None:
        assert list(self.queue) == self.order
        assert len(self.queue) == len(self.order)
        assert bool(self.queue) == bool(self.order)
        assert all(request in self.queue for request in self.order)
        assert not any(request in self.queue for request in self.running)
        assert self.barrier.faults == 0

    @invariant()
    def between_steps_the_order_is_first_come_first_served(self) -> None:
        if self.order:
            assert self.queue.peek_request() is self.order[0]

    def _admit(self, request: Request) -> None:
        ticket = self.tickets[request.request_id]
        ticket.dispatched_s = self.now_s if ticket.dispatched_s is None else ticket.dispatched_s
        self.order.remove(request)
        self.running.append(request)


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


class Shelf:
    """A queue with what a test says is in it."""

    def __init__(self) -> None:
        self.tickets: dict[str, Ticket] = {}
        self.barrier = FaultBarrier()
        self.queue = ClassRequestQueue(
            lambda request: self.tickets[request.request_id], self.barrier
        )

    def add(self, request_id: str, task_class: str, arrived_s: float) -> Request:
        request = vllm_request(request_id)
        self.tickets[request_id] = Ticket(request_id, task_class, arrived_s)
        self.queue.add_request(request)
        return request

    def drain(self) -> list[str]:
        return [self.queue.pop_request().request_id for _ in range(len(self.queue))]


def chat_policy(weight: float = 1.0, ttft_s: float = 1.0, **fields: object) -> ClassPolicy:
    return ClassPolicy("k", weight, 1.0, Slo(ttft_s), **fields)  # type: ignore[arg-type] # as given


def test_a_new_weight_acts_on_what_is_queued_already() -> None:
    shelf = Shelf()
    for index in range(3):
        shelf.add(f"batch{index}", "batch", float(index))
    shelf.add("vip", "vip", 3.0)
    before = {"batch": chat_policy(9.0), "vip": chat_policy(1.0)}
    shelf.queue.begin_step(table(Discipline.APQ, before), 4.0)
    assert shelf.queue.peek_request().request_id == "batch0"
    after = {"batch": chat_policy(1.0), "vip": chat_policy(9.0)}
    shelf.queue.begin_step(table(Discipline.APQ, after), 4.0)
    assert shelf.drain() == ["vip", "batch0", "batch1", "batch2"]


def test_within_a_demoted_class_those_that_can_make_it_go_first() -> None:
    shelf = Shelf()
    shelf.add("late", "chat", 0.0)
    shelf.add("in-time", "chat", 9.5)
    weights = {"chat": chat_policy(late=LatePolicy.DEMOTE)}
    shelf.queue.begin_step(table(Discipline.APQ, weights), 10.0)
    assert shelf.queue.past_slo("chat") == 1
    assert shelf.queue.oldest_arrival_s("chat") == 0.0
    assert shelf.drain() == ["in-time", "late"]


def test_a_longer_objective_takes_requests_back_from_being_late() -> None:
    shelf = Shelf()
    shelf.add("first", "chat", 0.0)
    shelf.add("second", "chat", 9.5)
    for ttft_s, past_slo in ((1.0, 1), (20.0, 0), (1.0, 1)):
        weights = {"chat": chat_policy(ttft_s=ttft_s, late=LatePolicy.DEMOTE)}
        shelf.queue.begin_step(table(Discipline.APQ, weights), 10.0)
        assert shelf.queue.past_slo("chat") == past_slo
    shelf.queue.begin_step(table(Discipline.FCFS, weights), 10.0)
    assert shelf.drain() == ["first", "second"]


def test_late_requests_stay_in_order_of_place_when_a_skipped_one_turns_late_after_them() -> None:
    shelf = Shelf()
    skipped = shelf.add("placed first, stamped later", "chat", 9.5)
    shelf.add("placed second", "chat", 0.0)
    weights = table(Discipline.APQ, {"chat": chat_policy(late=LatePolicy.DEMOTE)})
    shelf.queue.begin_step(weights, 10.0)
    assert shelf.queue.pop_request() is skipped
    shelf.queue.begin_step(weights, 10.1)
    shelf.queue.prepend_requests([skipped])
    shelf.queue.begin_step(weights, 20.0)
    shelf.queue.end_step()
    assert shelf.drain() == ["placed first, stamped later", "placed second"]


def test_a_late_request_that_was_skipped_is_still_past_its_objective() -> None:
    shelf = Shelf()
    late = shelf.add("late", "chat", 0.0)
    shelf.queue.begin_step(table(Discipline.APQ, {"chat": chat_policy()}), 10.0)
    assert shelf.queue.pop_request() is late
    shelf.queue.prepend_requests([late])
    assert shelf.queue.past_slo("chat") == 1


def test_a_class_that_comes_up_within_a_step_competes_under_its_own_policy() -> None:
    shelf = Shelf()
    shelf.add("batch", "batch", 0.0)
    weights = {"batch": chat_policy(1.0), "vip": chat_policy(9.0)}
    shelf.queue.begin_step(table(Discipline.APQ, weights), 10.0)
    shelf.add("vip", "vip", 5.0)
    assert shelf.queue.peek_request().request_id == "vip"


def test_a_faulty_table_falls_back_to_first_come_first_served_and_loses_nothing() -> None:
    shelf = Shelf()
    for index, task_class in enumerate(("b", "a", "b")):
        shelf.add(f"r{index}", task_class, float(index))

    class Broken:
        slo = Slo(1.0)
        late = LatePolicy.SERVE

        @property
        def max_wait_s(self) -> float:
            raise RuntimeError("broken")

    weights = table(Discipline.APQ, {})
    object.__setattr__(weights, "policies", {"a": Broken(), "b": Broken()})
    shelf.queue.begin_step(weights, 10.0)
    assert shelf.drain() == ["r0", "r1", "r2"]
    assert shelf.barrier.faults == 3


def test_an_empty_queue_says_so_as_stock_does() -> None:
    shelf = Shelf()
    with pytest.raises(IndexError):
        shelf.queue.peek_request()
    with pytest.raises(IndexError):
        shelf.queue.pop_request()
    with pytest.raises(ValueError, match="does not wait"):
        shelf.queue.remove_request(vllm_request("stranger"))
