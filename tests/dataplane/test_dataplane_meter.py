from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.meter import Meter, Outcome, judge, mean_tpot_s
from dataplane.ticket import Ticket
from dataplane.weights import Slo


def a_ticket(task_class: str = "chat", arrived_s: float = 10.0) -> Ticket:
    return Ticket("r1", task_class, arrived_s, prompt_tokens=7)


def test_a_request_is_followed_from_arrival_to_end() -> None:
    meter, ticket = Meter(), a_ticket()
    meter.arrived(ticket)
    meter.dispatched(ticket, 11.0)
    meter.generated(ticket, 0)
    meter.first_token(ticket, 13.0)
    meter.generated(ticket, 1)
    meter.first_token(ticket, 14.0)
    meter.generated(ticket, 3)
    meter.finished(ticket, Outcome.MET, 15.0)
    tally = meter.tallies["chat"]
    assert (tally.arrived, tally.prompt_tokens, tally.generated_tokens) == (1, 7, 3)
    assert list(tally.queue_time_s) == [1.0]
    assert list(tally.ttft_s) == [3.0]
    assert list(tally.tpot_s) == [1.0]
    assert list(tally.e2e_s) == [5.0]
    assert tally.finished[Outcome.MET] == 1
    assert (tally.live, tally.running, meter.live) == (0, 0, 0)


def test_a_preempted_request_waits_again_and_its_queue_time_is_counted_once() -> None:
    meter, ticket = Meter(), a_ticket()
    meter.arrived(ticket)
    meter.dispatched(ticket, 11.0)
    meter.preempted(ticket, 5)
    tally = meter.tallies["chat"]
    assert (tally.live, tally.running, tally.preempted, tally.recomputed_tokens) == (1, 0, 1, 5)
    assert ticket.preemptions == 1
    meter.dispatched(ticket, 14.0)
    assert tally.running == 1
    assert list(tally.queue_time_s) == [1.0]


def test_an_aborted_request_has_no_latency() -> None:
    meter, ticket = Meter(), a_ticket()
    meter.arrived(ticket)
    meter.finished(ticket, Outcome.ABORTED, 12.0)
    tally = meter.tallies["chat"]
    assert tally.finished[Outcome.ABORTED] == 1
    assert not tally.e2e_s
    assert tally.live == 0


@pytest.mark.parametrize(
    ("outcome", "overdue", "judged", "violated"),
    [
        (Outcome.MET, False, 1, 0),
        (Outcome.LATE, False, 1, 1),
        (Outcome.FAILED, False, 1, 1),
        (Outcome.ABORTED, False, 0, 0),
        (Outcome.LATE, True, 0, 0),  # the queue has counted it
        (Outcome.ABORTED, True, 0, 0),
    ],
)
def test_each_request_is_judged_once(
    *, outcome: Outcome, overdue: bool, judged: int, violated: int
) -> None:
    meter, ticket = Meter(), a_ticket()
    meter.arrived(ticket)
    ticket.overdue = overdue
    meter.finished(ticket, outcome, 12.0)
    tally = meter.tallies["chat"]
    assert (tally.judged, tally.violated) == (judged, violated)


def test_admissions_are_numbered_in_order() -> None:
    meter = Meter()
    tickets = [a_ticket() for _ in range(3)]
    for ticket in tickets:
        meter.arrived(ticket)
        meter.dispatched(ticket, 11.0)
    assert [ticket.admission for ticket in tickets] == [1, 2, 3]


@pytest.mark.parametrize(
    ("slo", "outcome"),
    [
        (Slo(ttft_s=2.0), Outcome.MET),
        (Slo(ttft_s=1.9), Outcome.LATE),
        (Slo(ttft_s=2.0, tpot_s=0.5), Outcome.MET),
        (Slo(ttft_s=2.0, tpot_s=0.4), Outcome.LATE),
        (Slo(ttft_s=2.0, e2e_s=4.0), Outcome.MET),
        (Slo(ttft_s=2.0, e2e_s=3.9), Outcome.LATE),
    ],
)
def test_met_means_every_objective(slo: Slo, outcome: Outcome) -> None:
    ticket = a_ticket(arrived_s=10.0)
    ticket.first_token_s, ticket.generated_tokens = 12.0, 5
    assert judge(ticket, slo, now_s=14.0) is outcome


def test_a_single_token_has_no_time_per_token() -> None:
    ticket = a_ticket()
    ticket.first_token_s, ticket.generated_tokens = 12.0, 1
    assert mean_tpot_s(ticket, 14.0) is None
    assert judge(ticket, Slo(ttft_s=9.0, tpot_s=0.001), 14.0) is Outcome.MET


@given(st.lists(st.sampled_from(["arrive", "run", "preempt", "end"]), max_size=60), st.randoms())
def test_live_and_running_never_drift(steps: list[str], random: Random) -> None:
    meter = Meter()
    waiting: list[Ticket] = []
    running: list[Ticket] = []
    for step in steps:
        if step == "arrive":
            waiting.append(a_ticket(random.choice("ab")))
            meter.arrived(waiting[-1])
        elif step == "run" and waiting:
            running.append(waiting.pop())
            meter.dispatched(running[-1], 1.0)
        elif step == "preempt" and running:
            waiting.append(running.pop())
            meter.preempted(waiting[-1], 0)
        elif step == "end" and waiting + running:
            ticket = random.choice(waiting + running)
            (waiting if ticket in waiting else running).remove(ticket)
            meter.finished(ticket, random.choice(list(Outcome)), 1.0)
    for name in meter.tallies:
        count = [ticket.task_class for ticket in running].count(name)
        assert meter.tallies[name].running == count
        alive = [ticket.task_class for ticket in waiting + running].count(name)
        assert meter.tallies[name].live == alive
    assert meter.live == len(waiting + running)
