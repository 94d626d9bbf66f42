import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
from loopback_control_plane import HandClock

from dataplane.faults import FaultBarrier
from dataplane.intake import LONGEST_TRANSIT_S, Intake
from dataplane.labels import DEFAULT_CLASS, OTHER_CLASS, ClassLabels
from dataplane.meter import Meter
from dataplane.weights import WeightTable

NO_CLASSES = replace(WeightTable.initial(), version=1)


@dataclass
class Parameters:
    extra_args: Any = None
    stop: Any = None


@dataclass
class Arrival:
    arrival_time: float
    sampling_params: Any = None
    request_id: str = "r1"
    num_prompt_tokens: int = 9
    priority: int = 0
    lora_request: Any = None


@pytest.fixture
def barrier() -> FaultBarrier:
    return FaultBarrier()


@pytest.fixture
def meter() -> Meter:
    return Meter()


@pytest.fixture
def intake(clock: HandClock, meter: Meter, barrier: FaultBarrier) -> Intake:
    return Intake(
        meter=meter,
        labels=ClassLabels(max_names=4),
        table=lambda _: NO_CLASSES,
        barrier=barrier,
        clock=clock,
    )


def test_age_counts_from_the_stamp_of_the_api_process(intake: Intake, clock: HandClock) -> None:
    ticket = intake.ticket_of(Arrival(clock.wall_s() - 0.25))
    assert clock.now_s - ticket.arrived_s == pytest.approx(0.25)


@pytest.mark.parametrize(("step_s", "age_s"), [(-3600.0, 0.0), (3600.0, LONGEST_TRANSIT_S)])
def test_a_stepped_clock_gives_no_negative_and_no_endless_age(
    intake: Intake, clock: HandClock, step_s: float, age_s: float
) -> None:
    arrival = Arrival(clock.wall_s())
    clock.wall_offset_s += step_s
    assert clock.now_s - intake.ticket_of(arrival).arrived_s == pytest.approx(age_s)


@pytest.mark.parametrize("stamp", [math.nan, math.inf, -math.inf])
def test_a_stamp_that_is_no_time_counts_as_now(
    intake: Intake, clock: HandClock, stamp: float
) -> None:
    assert intake.ticket_of(Arrival(stamp)).arrived_s == clock.now_s


def test_a_clock_that_steps_later_ages_nobody(intake: Intake, clock: HandClock) -> None:
    arrival = Arrival(clock.wall_s())
    before_s = intake.ticket_of(arrival).arrived_s
    clock.wall_offset_s += 3600.0
    assert intake.ticket_of(arrival).arrived_s == before_s


def test_the_claim_travels_in_the_extra_arguments(intake: Intake, clock: HandClock) -> None:
    parameters = Parameters(extra_args={"task_class": "vip"}, stop=["\n"])
    ticket = intake.ticket_of(Arrival(clock.wall_s(), parameters))
    assert (ticket.task_class, ticket.prompt_tokens, ticket.stops_on_text) == ("vip", 9, True)


@pytest.mark.parametrize("parameters", [None, Parameters(), Parameters(extra_args={})])
def test_without_a_claim_the_class_is_default(
    intake: Intake, clock: HandClock, parameters: Parameters | None
) -> None:
    ticket = intake.ticket_of(Arrival(clock.wall_s(), parameters))
    assert (ticket.task_class, ticket.stops_on_text) == (DEFAULT_CLASS, False)


def test_hostile_claims_are_other(intake: Intake, clock: HandClock, barrier: FaultBarrier) -> None:
    for number, claim in enumerate([7, {"a": 1}, ["vip"], "x" * 10**6, "a/b", True]):
        parameters = Parameters(extra_args={"task_class": claim})
        arrival = Arrival(clock.wall_s(), parameters, request_id=f"r{number}")
        assert intake.ticket_of(arrival).task_class == OTHER_CLASS
    assert barrier.faults == 0


def test_a_request_that_cannot_be_read_still_gets_a_ticket(
    intake: Intake, clock: HandClock, meter: Meter, barrier: FaultBarrier
) -> None:
    ticket = intake.ticket_of(Arrival(clock.wall_s(), Parameters(extra_args="no mapping")))
    assert ticket.task_class == DEFAULT_CLASS
    assert meter.live == 1
    assert barrier.faults == 1


def test_a_request_arrives_once_however_often_its_ticket_is_asked_for(
    intake: Intake, clock: HandClock, meter: Meter
) -> None:
    arrival = Arrival(clock.wall_s(), Parameters(extra_args={"task_class": "vip"}))
    assert intake.ticket_of(arrival) is intake.ticket_of(arrival)
    assert (meter.tallies["vip"].arrived, meter.tallies["vip"].prompt_tokens) == (1, 9)
