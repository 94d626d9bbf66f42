"""The queue against vLLM's own and against a slow, obvious model of every discipline."""

from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from obvious_queue import ObviousQueue
from shelf import policy_of, table_of, vllm_request
from vllm.v1.core.sched.request_queue import FCFSRequestQueue
from vllm.v1.request import Request

from dataplane.faults import FaultBarrier
from dataplane.queue import ClassRequestQueue
from dataplane.ticket import Ticket
from dataplane.weights import ClassPolicy, Discipline, LatePolicy, WeightTable

CLASSES = 4

policies = st.builds(
    policy_of,
    weight=st.sampled_from([0.1, 1.0, 7.0]),
    value=st.sampled_from([0.5, 1.0, 9.0]),
    ttft_s=st.sampled_from([0.5, 2.0, 20.0]),
    late=st.sampled_from(LatePolicy),
    max_wait_s=st.none() | st.sampled_from([1.0, 5.0]),
)
Configuration = tuple[Discipline, list[ClassPolicy | None]]

configurations = st.tuples(
    st.sampled_from(Discipline),
    st.lists(st.none() | policies, min_size=CLASSES, max_size=CLASSES),
)


class QueueMachine(RuleBasedStateMachine):
    """Drives the queue as vLLM's scheduler does; ``model.waiting`` is the truth about places."""

    only: Discipline | None = None

    @initialize(
        names=st.permutations([f"class-{number}" for number in range(CLASSES)]),
        configuration=configurations,
    )
    def start(self, names: list[str], configuration: Configuration) -> None:
        self.names = names
        self.a_snapshot_arrives(configuration)
        self.model = ObviousQueue(WeightTable.initial())
        self.requests: dict[str, Request] = {}
        self.tickets: dict[str, Ticket] = {}
        self.running: list[Ticket] = []
        self.faults = 0
        self.barrier = FaultBarrier()
        self.queue = ClassRequestQueue(
            lambda request: self.tickets[request.request_id], self.barrier
        )

    @rule(configuration=configurations)
    def a_snapshot_arrives(self, configuration: Configuration) -> None:
        discipline, drawn = configuration
        if self.only is not None:
            discipline = self.only
        named = zip(self.names, drawn, strict=True)
        self.table = table_of(discipline, {name: each for name, each in named if each is not None})

    @rule(seconds=st.sampled_from([0.1, 1.0, 4.0]))
    def time_passes(self, seconds: float) -> None:
        self.model.now_s += seconds

    @rule(
        arrivals=st.lists(
            st.tuples(
                st.integers(0, CLASSES - 1),
                st.sampled_from([0, 10, 300, 9000]),
                st.sampled_from([None, 1, 500]),
            ),
            min_size=1,
            max_size=5,
        )
    )
    def requests_arrive(self, arrivals: list[tuple[int, int, int | None]]) -> None:
        for number, prompt_tokens, max_tokens in arrivals:
            request_id = f"r{len(self.tickets)}"
            request = self.requests[request_id] = vllm_request(request_id)
            ticket = self.tickets[request_id] = Ticket(
                request_id,
                self.names[number],
                self.model.now_s,
                prompt_tokens=prompt_tokens,
                max_tokens=max_tokens,
            )
            self.queue.add_request(request)
            self.model.enter(len(self.model.waiting), ticket)

    @rule(
        skips=st.lists(st.sampled_from([False, False, True]), max_size=8),
        free_tokens=st.sampled_from([0, 320, 10**9, None]),
        gate_breaks=st.booleans(),
        pins=st.lists(st.integers(0, 9), max_size=2, unique=True),
    )
    def a_step_runs(
        self,
        skips: list[bool],
        free_tokens: int | None,
        gate_breaks: bool,  # noqa: FBT001 - Hypothesis gives it by name
        pins: list[int],
    ) -> None:
        table, discipline = self.table, self.table.discipline
        before, stock = list(self.model.waiting), FCFSRequestQueue(self._waiting())
        free = [free_tokens or 0]

        def fits(ticket: Ticket, _policy: ClassPolicy) -> bool:
            if gate_breaks:
                self.faults += 1
                raise RuntimeError("the gate is broken")
            return ticket.prompt_tokens <= free[0]

        gated = free_tokens is not None
        self.queue.begin_step(table, self.model.now_s, fits if gated else None)
        self.model.begin(
            table,
            self.model.now_s,
            lambda t: not gated or gate_breaks or t.prompt_tokens <= free[0],
        )
        for pin in pins:
            if pin < len(before):
                self.queue.pin(before[pin].request_id)
                self.model.pins.append(before[pin].request_id)
        skipped: deque[Request] = deque()
        for skip in skips:
            choice = self.model.choose()
            assert bool(self.queue) is (choice is not None)
            if choice is None:
                break
            request = self.queue.peek_request()
            assert request.request_id == choice.request_id
            assert self.queue.pop_request() is request
            if discipline is Discipline.FCFS and not gated and not pins:
                assert stock.pop_request() is request
            self.model.pop(choice)
            if skip:
                skipped.appendleft(request)
            else:
                choice.dispatched_s = choice.dispatched_s or self.model.now_s
                self.running.append(choice)
                free[0] -= choice.prompt_tokens
        self.queue.prepend_requests(skipped)
        self.queue.end_step()
        self.model.give_back(self.tickets[request.request_id] for request in skipped)
        self.model.end()

    @precondition(lambda self: self.running)
    @rule(count=st.integers(1, 3))
    def running_requests_are_preempted(self, count: int) -> None:
        for _ in range(min(count, len(self.running))):
            ticket = self.running.pop()
            self.queue.prepend_request(self.requests[ticket.request_id])
            self.model.enter(0, ticket)

    @precondition(lambda self: self.running)
    @rule(generated_tokens=st.sampled_from([0, 1, 40, 2000]))
    def a_running_request_ends(self, generated_tokens: int) -> None:
        ticket = self.running.pop(0)
        ticket.generated_tokens = generated_tokens
        self.queue.ended(ticket)
        self.model.ended(ticket)

    @rule(data=st.data())
    def requests_are_aborted(self, data: st.DataObject) -> None:
        victims = data.draw(
            st.lists(st.sampled_from([*self.model.waiting, *self.running, None]), unique=True)
        )
        doomed = [victim for victim in victims if victim is not None]
        self.queue.remove_requests(self.requests[victim.request_id] for victim in doomed)
        for victim in doomed:
            (self.running if victim in self.running else self.model.waiting).remove(victim)
            self.queue.ended(victim)
            self.model.ended(victim)

    @invariant()
    def nothing_is_lost_doubled_or_out_of_place(self) -> None:
        assert list(self.queue) == self._waiting()
        assert len(self.queue) == len(self.model.waiting)
        assert bool(self.queue) == bool(self.model.waiting)
        assert all(request in self.queue for request in self._waiting())
        assert not any(self.requests[ticket.request_id] in self.queue for ticket in self.running)
        assert self.barrier.faults == self.faults

    @invariant()
    def between_steps_the_order_is_first_come_first_served(self) -> None:
        if self.model.waiting:
            assert self.queue.peek_request().request_id == self.model.waiting[0].request_id

    def _waiting(self) -> list[Request]:
        return [self.requests[ticket.request_id] for ticket in self.model.waiting]


class FairMachine(QueueMachine):
    """Stays on ``wfq``, whose accounts only show in the long run."""

    only = Discipline.WFQ


class WorkMachine(QueueMachine):
    """Stays on ``gcmu``, which learns what requests generate."""

    only = Discipline.GCMU


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)
TestFairQueue = FairMachine.TestCase
TestFairQueue.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
TestWorkQueue = WorkMachine.TestCase
TestWorkQueue.settings = settings(max_examples=40, stateful_step_count=50, deadline=None)
