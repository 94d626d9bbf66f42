"""What users rely on of the queue, case by case."""

import pytest
from shelf import Shelf, policy_of, table_of, vllm_request

from dataplane.ticket import Ticket
from dataplane.weights import ClassPolicy, Discipline, LatePolicy, Slo

DISCIPLINES = list(Discipline)
WEIGHED = [Discipline.APQ, Discipline.WFQ, Discipline.STRICT, Discipline.CP_SCORE]
BOUNDED = [discipline for discipline in Discipline if discipline is not Discipline.FCFS]


def test_a_new_weight_acts_on_what_is_queued_already() -> None:
    shelf = Shelf()
    for index in range(3):
        shelf.add(f"batch{index}", "batch", float(index))
    shelf.add("vip", "vip", 3.0)
    before = {"batch": policy_of(9.0), "vip": policy_of(1.0)}
    shelf.queue.begin_step(table_of(Discipline.APQ, before), 4.0)
    assert shelf.queue.peek_request().request_id == "batch0"
    after = {"batch": policy_of(1.0), "vip": policy_of(9.0)}
    shelf.queue.begin_step(table_of(Discipline.APQ, after), 4.0)
    assert shelf.drain() == ["vip", "batch0", "batch1", "batch2"]


def test_within_a_demoted_class_those_that_can_make_it_go_first() -> None:
    shelf = Shelf()
    shelf.add("late", "chat", 0.0)
    shelf.add("in-time", "chat", 9.5)
    weights = {"chat": policy_of(late=LatePolicy.DEMOTE)}
    shelf.queue.begin_step(table_of(Discipline.APQ, weights), 10.0)
    assert shelf.queue.past_slo("chat") == 1
    assert shelf.queue.oldest_arrival_s("chat") == 0.0
    assert shelf.drain() == ["in-time", "late"]


def test_a_longer_objective_takes_requests_back_from_being_late() -> None:
    shelf = Shelf()
    shelf.add("first", "chat", 0.0)
    shelf.add("second", "chat", 9.5)
    for ttft_s, past_slo in ((1.0, 1), (20.0, 0), (1.0, 1)):
        weights = {"chat": policy_of(ttft_s=ttft_s, late=LatePolicy.DEMOTE)}
        shelf.queue.begin_step(table_of(Discipline.APQ, weights), 10.0)
        assert shelf.queue.past_slo("chat") == past_slo
    shelf.queue.begin_step(table_of(Discipline.FCFS, weights), 10.0)
    assert shelf.drain() == ["first", "second"]


def test_late_requests_stay_in_order_of_place_when_a_skipped_one_turns_late_after_them() -> None:
    shelf = Shelf()
    skipped = shelf.add("placed first, stamped later", "chat", 9.5)
    shelf.add("placed second", "chat", 0.0)
    weights = table_of(Discipline.APQ, {"chat": policy_of(late=LatePolicy.DEMOTE)})
    shelf.queue.begin_step(weights, 10.0)
    assert shelf.queue.pop_request() is skipped
    shelf.queue.begin_step(weights, 10.1)
    shelf.queue.prepend_requests([skipped])
    shelf.queue.begin_step(weights, 20.0)
    shelf.queue.end_step()
    assert shelf.drain() == ["placed first, stamped later", "placed second"]


def test_a_request_turns_late_once_however_often_its_objective_changes() -> None:
    shelf = Shelf()
    assert shelf.queue.turned_late("chat") == 0
    shelf.add("late", "chat", 0.0)
    for ttft_s, turned_late in ((20.0, 0), (1.0, 1), (20.0, 1), (1.0, 1)):
        shelf.queue.begin_step(table_of(Discipline.FCFS, {"chat": policy_of(ttft_s=ttft_s)}), 10.0)
        shelf.queue.past_slo("chat")
        assert shelf.queue.turned_late("chat") == turned_late
    shelf.drain()
    assert shelf.queue.turned_late("chat") == 1


def test_a_late_request_that_was_skipped_is_still_past_its_objective() -> None:
    shelf = Shelf()
    late = shelf.add("late", "chat", 0.0)
    shelf.queue.begin_step(table_of(Discipline.APQ, {"chat": policy_of()}), 10.0)
    assert shelf.queue.pop_request() is late
    shelf.queue.prepend_requests([late])
    assert shelf.queue.past_slo("chat") == 1


def test_a_class_that_comes_up_within_a_step_competes_under_its_own_policy() -> None:
    shelf = Shelf()
    shelf.add("batch", "batch", 0.0)
    weights = {"batch": policy_of(1.0), "vip": policy_of(9.0)}
    shelf.queue.begin_step(table_of(Discipline.APQ, weights), 10.0)
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

    weights = table_of(Discipline.APQ, {})
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


@pytest.mark.parametrize("discipline", DISCIPLINES)
def test_equal_requests_never_take_turns(discipline: Discipline) -> None:
    """Field failure 2: with all equal, the order is by place and stays so while time passes."""
    shelf = Shelf()
    for index in range(6):
        shelf.add(f"r{index}", "ab"[index % 2], 0.0)
    weights = table_of(discipline, {"a": policy_of(), "b": policy_of()})
    for now_s in (0.0, 0.5, 3.0, 50.0):
        shelf.queue.begin_step(weights, now_s)
        assert shelf.queue.peek_request().request_id == "r0"
        skipped = [shelf.queue.pop_request(), shelf.queue.pop_request()]
        assert [request.request_id for request in skipped] == ["r0", "r1"]
        shelf.queue.prepend_requests(reversed(skipped))
        shelf.queue.end_step()
    assert shelf.drain() == [f"r{index}" for index in range(6)]


@pytest.mark.parametrize("late", LatePolicy)
@pytest.mark.parametrize("discipline", DISCIPLINES)
def test_a_preempted_request_comes_first_in_its_class(
    discipline: Discipline, late: LatePolicy
) -> None:
    """Field failure 3: those that never started don't take its place, late or not."""
    shelf = Shelf()
    started = shelf.add("started", "chat", 0.0, prompt_tokens=5000)
    for index in range(3):
        shelf.add(f"new{index}", "chat", 0.0)
    weights = table_of(discipline, {"chat": policy_of(late=late)})
    shelf.queue.begin_step(weights, 0.1)
    assert shelf.queue.pop_request() is started
    shelf.tickets["started"].dispatched_s = 0.1
    shelf.queue.end_step()
    shelf.queue.prepend_request(started)
    for now_s in (0.2, 30.0):
        shelf.queue.begin_step(weights, now_s)
        assert shelf.queue.peek_request() is started


@pytest.mark.parametrize("discipline", WEIGHED)
def test_a_flip_of_weights_shows_in_the_very_next_dispatch(discipline: Discipline) -> None:
    """Field failure 4: whatever is queued already, and within a step's first dispatch."""
    shelf = Shelf()
    for index in range(50):
        shelf.add(f"a{index}", "a", 0.0)
        shelf.add(f"b{index}", "b", 0.0)
    for step, (heavy, light) in enumerate(["ab", "ba", "ab"]):
        weights = table_of(discipline, {heavy: policy_of(9.0), light: policy_of(1.0)})
        shelf.queue.begin_step(weights, 1.0 + step)
        assert shelf.pop()[0] == heavy
        shelf.queue.end_step()


@pytest.mark.parametrize("discipline", DISCIPLINES)
def test_a_flip_of_disciplines_costs_no_request_its_place(discipline: Discipline) -> None:
    shelf = Shelf()
    expected = [f"r{index}" for index in range(20)]
    for index, request_id in enumerate(expected):
        shelf.add(request_id, "abcd"[index % 4], index / 10)
    for now_s, flip in enumerate((discipline, Discipline.FCFS, discipline)):
        weights = table_of(flip, {"a": policy_of(9.0), "b": policy_of(late=LatePolicy.DEMOTE)})
        shelf.queue.begin_step(weights, 5.0 + now_s)
        shelf.queue.prepend_requests(reversed([shelf.queue.pop_request() for _ in range(7)]))
        shelf.queue.end_step()
    assert shelf.drain() == expected


@pytest.mark.parametrize("discipline", [Discipline.APQ, Discipline.GCMU, Discipline.EDF])
def test_short_prompts_overtake_the_long_ones_in_front_of_them(discipline: Discipline) -> None:
    """Field failure 7, the one half: a short class isn't stuck behind a row of long prompts."""
    shelf = Shelf()
    for index in range(100):
        shelf.add(f"long{index}", "long", 0.0, prompt_tokens=20_000)
    shelf.add("short", "short", 1.0, prompt_tokens=20)
    weights = table_of(discipline, {"long": policy_of(ttft_s=60.0), "short": policy_of(ttft_s=1.0)})
    shelf.queue.begin_step(weights, 1.5)
    assert shelf.pop() == "short"


@pytest.mark.parametrize("discipline", BOUNDED)
def test_a_bounded_wait_ends_the_starvation_of_a_light_class(discipline: Discipline) -> None:
    """Field failure 7, the other half: heavy arrivals fill the engine for ever, yet it is served.

    One request goes per second, and a heavier one arrives: beyond its bound of 10 s the light
    request waits for nothing but the dispatch that is due.
    """
    shelf = Shelf()
    shelf.add("light", "light", 0.0, prompt_tokens=10**6)
    heavy = policy_of(1000.0, ttft_s=0.1, value=1000.0)
    light = policy_of(0.001, 1e6, value=0.001, late=LatePolicy.DEMOTE, max_wait_s=10.0)
    weights = table_of(discipline, {"heavy": heavy, "light": light})
    served_at_s = None
    for second in range(20):
        shelf.add(f"heavy{second}", "heavy", second - 0.05)
        shelf.add(f"more{second}", "heavy", second - 0.05)
        shelf.queue.begin_step(weights, float(second))
        if shelf.pop() == "light":
            served_at_s = second
            break
        shelf.queue.end_step()
    assert served_at_s is not None
    assert served_at_s <= 11


def test_without_a_bound_strict_starves_the_light_class() -> None:
    shelf = Shelf()
    shelf.add("light", "light", 0.0)
    weights = table_of(Discipline.STRICT, {"heavy": policy_of(2.0), "light": policy_of(1.0)})
    for second in range(200):
        shelf.add(f"heavy{second}", "heavy", float(second))
        shelf.queue.begin_step(weights, second + 0.5)
        assert shelf.pop() != "light"


@pytest.mark.parametrize("discipline", BOUNDED)
def test_under_demote_the_late_go_last_and_the_overdue_first(discipline: Discipline) -> None:
    shelf = Shelf()
    shelf.add("late", "heavy", 0.0)
    shelf.add("in time", "light", 8.0)
    heavy = policy_of(9.0, value=9.0, late=LatePolicy.DEMOTE, max_wait_s=20.0)
    light = policy_of(0.1, ttft_s=100.0, value=0.1)
    weights = table_of(discipline, {"heavy": heavy, "light": light})
    shelf.queue.begin_step(weights, 10.0)
    assert shelf.queue.peek_request().request_id == "in time"
    shelf.queue.begin_step(weights, 20.5)
    assert shelf.queue.peek_request().request_id == "late"


@pytest.mark.parametrize("discipline", DISCIPLINES)
def test_renaming_classes_changes_nothing(discipline: Discipline) -> None:
    orders = []
    for names in ("abcd", "dcba", "zxyw"):
        shelf = Shelf()
        for index in range(40):
            shelf.add(f"r{index}", names[index % 4], index / 4, prompt_tokens=index % 7 * 50)
        policies = {
            name: policy_of(1.0 + number, 3.0 + number, late=LatePolicy.DEMOTE, max_wait_s=15.0)
            for number, name in enumerate(names)
        }
        order = []
        for step in range(10):
            shelf.queue.begin_step(table_of(discipline, policies), 8.0 + step)
            order += [shelf.pop() for _ in range(4)]
            shelf.queue.end_step()
        orders.append(order)
    assert orders[0] == orders[1] == orders[2]


def test_a_closed_gate_closes_the_class_for_the_step_and_no_other() -> None:
    shelf = Shelf()
    shelf.add("big", "batch", 0.0, prompt_tokens=900)
    shelf.add("small", "batch", 0.0, prompt_tokens=1)
    shelf.add("chat", "chat", 1.0, prompt_tokens=1)
    weights = table_of(Discipline.APQ, {"batch": policy_of(9.0), "chat": policy_of()})
    asked = []

    def fits(ticket: Ticket, policy: ClassPolicy) -> bool:
        asked.append((ticket.request_id, policy.weight))
        return ticket.prompt_tokens < 100

    shelf.queue.begin_step(weights, 2.0, fits)
    assert bool(shelf.queue)
    assert shelf.pop() == "chat"
    assert not bool(shelf.queue)
    assert len(shelf.queue) == 2
    assert asked == [("big", 9.0), ("chat", 1.0)]
    with pytest.raises(IndexError):
        shelf.queue.peek_request()
    shelf.queue.end_step()
    assert bool(shelf.queue)
    shelf.queue.begin_step(weights, 2.0)
    assert shelf.pop() == "big"


def test_the_gate_is_asked_about_overdue_heads_too() -> None:
    shelf = Shelf()
    shelf.add("overdue", "batch", 0.0)
    weights = table_of(Discipline.APQ, {"batch": policy_of(max_wait_s=1.0)})
    shelf.queue.begin_step(weights, 9.0, lambda _ticket, _policy: False)
    assert not bool(shelf.queue)


def test_a_gate_that_raises_is_open() -> None:
    shelf = Shelf()
    shelf.add("r", "chat", 0.0)

    def broken(_ticket: Ticket, _policy: ClassPolicy) -> bool:
        raise RuntimeError("broken")

    shelf.queue.begin_step(table_of(Discipline.APQ, {}), 1.0, broken)
    assert shelf.pop() == "r"
    assert shelf.barrier.faults == 1


@pytest.mark.parametrize("discipline", DISCIPLINES)
def test_a_pinned_request_goes_next_past_discipline_and_gate(discipline: Discipline) -> None:
    shelf = Shelf()
    for index in range(4):
        shelf.add(f"r{index}", "ab"[index % 2], 0.0)
    shelf.queue.begin_step(table_of(discipline, {}), 1.0, lambda _ticket, _policy: False)
    assert not bool(shelf.queue)
    shelf.queue.pin("r3")
    assert bool(shelf.queue)
    assert shelf.pop() == "r3"
    assert not bool(shelf.queue)


def test_a_pin_ends_with_the_step_with_a_skip_and_with_the_request() -> None:
    shelf = Shelf()
    requests = [shelf.add(f"r{index}", "a", 0.0) for index in range(3)]
    weights = table_of(Discipline.APQ, {})
    shelf.queue.begin_step(weights, 1.0)
    shelf.queue.pin("r2")
    shelf.queue.end_step()
    shelf.queue.begin_step(weights, 1.0)
    assert shelf.queue.peek_request() is requests[0]
    shelf.queue.pin("r2")
    assert shelf.queue.pop_request() is requests[2]
    shelf.queue.prepend_requests([requests[2]])
    assert shelf.queue.peek_request() is requests[0]
    shelf.queue.pin("r1")
    shelf.queue.remove_requests([requests[1]])
    assert shelf.drain() == ["r0", "r2"]


def test_heads_are_the_first_of_each_class_with_its_policy() -> None:
    shelf = Shelf()
    for index, task_class in enumerate("aabbc"):
        shelf.add(f"r{index}", task_class, float(index))
    weights = table_of(Discipline.STRICT, {"a": policy_of(3.0), "b": policy_of(2.0)})
    shelf.queue.begin_step(weights, 9.0)
    heads = {ticket.request_id: policy.weight for ticket, policy in shelf.queue.heads()}
    assert heads == {"r0": 3.0, "r2": 2.0, "r4": 2.0}
    assert shelf.pop() == "r0"
    assert {ticket.request_id for ticket, _ in shelf.queue.heads()} == {"r1", "r2", "r4"}


def test_what_is_past_its_objective_can_be_read_between_steps() -> None:
    shelf = Shelf()
    shelf.add("r", "chat", 0.0)
    shelf.queue.begin_step(table_of(Discipline.APQ, {"chat": policy_of()}), 10.0)
    shelf.queue.end_step()
    assert shelf.queue.past_slo("chat") == 1
    assert shelf.queue.past_slo("stranger") == 0
    assert shelf.queue.oldest_arrival_s("stranger") is None
