"""Properties of the plugin on vLLM's own scheduler, few slots and little memory."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from scripted_engine import (
    LONGEST_OUTPUT_TOKENS,
    LONGEST_PROMPT_TOKENS,
    SMALL,
    STEP_S,
    ScriptedEngine,
)
from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from benchmarks.stack.inprocess import SchedulerSize
from benchmarks.stack.process import free_port
from dataplane.ordering import ORDERINGS
from dataplane.weights import ClassPolicy, Discipline, LatePolicy, Slo, Tier

CLASSES = ("a", "b", "c", "d")
UNCONFIGURED = "nobody-configured-this"

SYNCHRONOUS = SchedulerSize(
    max_num_seqs=SMALL.max_num_seqs,
    max_num_batched_tokens=SMALL.max_num_batched_tokens,
    max_model_len=SMALL.max_model_len,
    blocks=SMALL.blocks,
    block_size=SMALL.block_size,
    in_flight=1,
)
ROOMY = SchedulerSize(max_num_seqs=3, max_num_batched_tokens=128, max_model_len=96, blocks=65)

# The same examples in each run: what fails here fails everywhere.
FEW = settings(max_examples=15, stateful_step_count=30, deadline=None, derandomize=True)


@pytest.fixture(autouse=True, scope="module")
def _alone() -> Iterator[None]:
    """No control plane, and no lines of vLLM about each of hundreds of schedulers."""
    logging.disable(logging.WARNING)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRIMTAB_CONTROL_PLANE", f"127.0.0.1:{free_port()}")
        yield
    logging.disable(logging.NOTSET)


def policies(*, protecting: bool) -> st.SearchStrategy[ClassPolicy]:
    """Without ``protecting`` there is nothing for which anything is held back."""
    return st.builds(
        ClassPolicy,
        task_class=st.just(""),
        weight=st.sampled_from([0.01, 0.5, 1.0, 3.0, 100.0]),
        default_weight=st.just(1.0),
        slo=st.builds(
            Slo,
            ttft_s=st.sampled_from([0.03, 0.3, 5.0]),
            tpot_s=st.sampled_from([None, 0.02]) if protecting else st.none(),
        ),
        late=st.sampled_from(LatePolicy),
        max_wait_s=st.sampled_from([None, 0.1, 1.0]),
        tier=st.sampled_from([Tier.P0, Tier.P1, Tier.P2]) if protecting else st.just(Tier.P0),
    )


@dataclass(frozen=True)
class Request:
    number: int
    prompt_tokens: int
    max_tokens: int
    first_token: int


REQUESTS = st.builds(
    Request,
    number=st.integers(0, len(CLASSES)),
    prompt_tokens=st.integers(1, LONGEST_PROMPT_TOKENS),
    max_tokens=st.integers(1, LONGEST_OUTPUT_TOKENS),
    first_token=st.integers(0, 2),
)
Policies = tuple[ClassPolicy, ...]
EACH_CLASS = len(CLASSES)


class SchedulerMachine(RuleBasedStateMachine):
    """Arrivals, aborts, snapshots and steps in any order."""

    def __init__(self, *, size: SchedulerSize = SMALL, protecting: bool = False) -> None:
        super().__init__()
        self.protecting = protecting
        self.engine = ScriptedEngine(size=size, strict=not protecting)

    @initialize(data=st.data())
    def first_snapshot(self, data: st.DataObject) -> None:
        self.publish(data)

    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        each = data.draw(
            st.lists(policies(protecting=self.protecting), min_size=EACH_CLASS, max_size=EACH_CLASS)
        )
        self.engine.publish(
            dict(zip(CLASSES, each, strict=True)), data.draw(st.sampled_from(list(ORDERINGS)))
        )

    @rule(requests=st.lists(REQUESTS, min_size=1, max_size=5))
    def arrive(self, requests: list[Request]) -> None:
        for request in requests:
            arrive(self.engine, request, CLASSES)

    @precondition(lambda self: self.engine.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        live = st.sampled_from(sorted(self.engine.live))
        self.engine.abort(data.draw(st.lists(live, min_size=1, max_size=3, unique=True)))

    @rule(seconds=st.sampled_from([0.05, 0.5, 40.0]))
    def pause(self, seconds: float) -> None:
        self.engine.clock.now_s += seconds

    @rule(count=st.integers(1, 25))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.engine.step()
            self.engine.check()

    @invariant()
    def accounts_balance(self) -> None:
        self.engine.check()

    def teardown(self) -> None:
        try:
            self.engine.drain()
            self.engine.check()
        finally:
            self.engine.close()


def arrive(engine: ScriptedEngine, request: Request, names: Sequence[str]) -> None:
    engine.arrive(
        (*names, UNCONFIGURED)[request.number],
        prompt_tokens=request.prompt_tokens,
        max_tokens=request.max_tokens,
        first_token=request.first_token,
    )


@pytest.mark.parametrize("size", [SMALL, SYNCHRONOUS], ids=["asynchronous", "synchronous"])
def test_every_request_ends_once_no_step_wastes_room_and_memory_shortage_stops_nothing(
    size: SchedulerSize,
) -> None:
    run_state_machine_as_test(lambda: SchedulerMachine(size=size), settings=FEW)


def test_protecting_some_classes_loses_no_request_and_stops_nothing() -> None:
    run_state_machine_as_test(lambda: SchedulerMachine(protecting=True), settings=FEW)


@dataclass(frozen=True)
class Moment:
    """What happens before a few steps."""

    requests: tuple[Request, ...]
    aborted: int | None
    snapshot: tuple[Policies, Discipline] | None
    steps: int


def moments(
    snapshots: st.SearchStrategy[tuple[Policies, Discipline] | None],
) -> st.SearchStrategy[list[Moment]]:
    return st.lists(
        st.builds(
            Moment,
            requests=st.lists(REQUESTS, max_size=4).map(tuple),
            aborted=st.none() | st.integers(0, 30),
            snapshot=snapshots,
            steps=st.integers(1, 12),
        ),
        min_size=2,
        max_size=10,
    )


SNAPSHOTS = st.tuples(
    st.lists(policies(protecting=True), min_size=EACH_CLASS, max_size=EACH_CLASS).map(tuple),
    st.sampled_from(list(ORDERINGS)),
)


def play(
    script: Sequence[Moment],
    *,
    names: Sequence[str] = CLASSES,
    kind: type[AsyncScheduler] | None = None,
    order: Callable[[Mapping[str, ClassPolicy]], Mapping[str, ClassPolicy]] = dict,
) -> list[dict[str, int]]:
    """What each step scheduled."""
    engine = ScriptedEngine() if kind is None else ScriptedEngine(kind=kind)
    try:
        for moment in script:
            if moment.snapshot is not None:
                each, discipline = moment.snapshot
                engine.publish(order(dict(zip(names, each, strict=True))), discipline)
            for request in moment.requests:
                arrive(engine, request, names)
            if moment.aborted is not None:
                engine.abort([f"r{moment.aborted}"])
            for _ in range(moment.steps):
                engine.step()
        engine.drain()
        engine.check()
    finally:
        engine.close()
    return engine.schedule


@settings(max_examples=15, deadline=None, derandomize=True)
@given(script=moments(st.none() | SNAPSHOTS), names=st.permutations(["d", "Z", "b", "a.0"]))
def test_renaming_classes_changes_no_step(script: list[Moment], names: list[str]) -> None:
    def reverse(table: Mapping[str, ClassPolicy]) -> Mapping[str, ClassPolicy]:
        return dict(reversed(table.items()))

    assert play(script, names=names, order=reverse) == play(script)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(script=moments(st.none()), each=st.lists(policies(protecting=True), min_size=4, max_size=4))
def test_under_fcfs_and_before_any_snapshot_every_step_is_that_of_stock_vllm(
    script: list[Moment], each: list[ClassPolicy]
) -> None:
    half = len(script) // 2
    switched = Moment((), None, (tuple(each), Discipline.FCFS), 1)
    still = Moment((), None, None, 1)
    ours = play([*script[:half], switched, *script[half:]])
    assert ours == play([*script[:half], still, *script[half:]], kind=AsyncScheduler)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    max_wait_s=st.sampled_from([0.05, 0.3, 1.0]),
    weight=st.sampled_from([2.0, 1e6]),
    late=st.sampled_from(LatePolicy),
    discipline=st.sampled_from([d for d in ORDERINGS if d is not Discipline.FCFS]),
    output_tokens=st.integers(1, LONGEST_OUTPUT_TOKENS),
)
def test_a_wait_ends_with_the_first_slot_that_comes_free_after_max_wait_s(
    max_wait_s: float,
    weight: float,
    late: LatePolicy,
    discipline: Discipline,
    output_tokens: int,
) -> None:
    engine = ScriptedEngine(size=ROOMY, strict=True)
    light = ClassPolicy("light", 1.0, 1.0, Slo(0.1), late=late, max_wait_s=max_wait_s)
    heavy = ClassPolicy("heavy", weight, 1.0, Slo(0.01))
    engine.publish({"light": light, "heavy": heavy}, discipline)
    # A step of prefill, one for each token, and one until the results are back.
    service_s = (1 + output_tokens + ROOMY.in_flight) * STEP_S
    try:
        for _ in range(6):
            engine.arrive("heavy", prompt_tokens=20, max_tokens=output_tokens)
        engine.step()
        waiting = engine.arrive("light", prompt_tokens=20, max_tokens=output_tokens)
        arrived_s = engine.clock.now_s
        while waiting not in engine.schedule[-1]:
            assert engine.clock.now_s - arrived_s <= max_wait_s + service_s
            engine.arrive("heavy", prompt_tokens=20, max_tokens=output_tokens)
            engine.step()
    finally:
        engine.close()
