from dataclasses import replace

import numpy as np
import pytest

from training.errors import RequestTooLarge
from training.simulator.calibration import REFERENCE_ENGINE
from training.simulator.course import Course
from training.simulator.model import Discipline, Fleet
from training.simulator.play import capacity_requests_per_s, play, slowed
from training.simulator.policies import POLICIES, uniform_shares, value_shares
from training.simulator.regimes import draw_scenario
from training.simulator.scenario import Scenario
from training.simulator.traffic import REFERENCE
from training.simulator.workload import Workload

FLEET = Fleet(REFERENCE_ENGINE.engine, declares_output=True)


def drawn(name: str, *, load: float, duration_s: float = 120.0) -> Scenario:
    return draw_scenario(
        name,
        REFERENCE,
        requests_per_s=load * capacity_requests_per_s(FLEET, REFERENCE),
        duration_s=duration_s,
        seed=5,
    )


def lone(prompt_tokens: int, output_tokens: int) -> Scenario:
    workload = Workload(
        np.array([0.0]),
        np.array([0]),
        np.array([prompt_tokens]),
        np.array([output_tokens]),
        (REFERENCE[0].task_class,),
    )
    return Scenario.steady("lone", workload)


def test_a_lone_request_takes_the_time_of_its_steps_and_the_clients_overhead() -> None:
    engine = FLEET.engine
    played = play(lone(100, 3), FLEET, uniform_shares)
    prompt_s = engine.base_s + 100 * engine.prefill_s_per_token + 112 * engine.kv_s_per_token
    decode_s = engine.base_s + engine.decode_s_per_sequence + 112 * engine.kv_s_per_token
    overhead_s = engine.client_overhead_s
    assert played.ttft_s == pytest.approx([prompt_s + overhead_s])
    assert played.e2e_s == pytest.approx([prompt_s + 2 * decode_s + overhead_s])
    assert (played.preemptions, played.recomputed_tokens) == (0, 0)


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_completes_every_request(name: str) -> None:
    policy = POLICIES[name]
    scenario = drawn("stationary", load=1.2, duration_s=40)
    played = play(scenario, replace(FLEET, discipline=policy.discipline), policy.shares)
    assert (played.ttft_s > 0).all()
    assert (played.e2e_s >= played.ttft_s).all()


def test_an_engine_that_gets_slower_makes_requests_wait_from_then_on() -> None:
    scenario = drawn("stationary", load=0.7)
    slower = replace(scenario, step_time=Course.change(60.0, 0.0, 1.0, 1.8))
    usual, drifted = (play(each, FLEET, value_shares) for each in (scenario, slower))
    late = scenario.workload.arrival_s > 65
    early = scenario.workload.arrival_s < 40
    assert drifted.e2e_s[early] == pytest.approx(usual.e2e_s[early])
    assert drifted.e2e_s[late].mean() > 1.5 * usual.e2e_s[late].mean()


def test_a_slower_engine_takes_longer_in_proportion() -> None:
    fast = capacity_requests_per_s(FLEET, REFERENCE)
    half = replace(FLEET, engine=slowed(FLEET.engine, 2.0))
    assert capacity_requests_per_s(half, REFERENCE) == pytest.approx(fast / 2, rel=0.02)


def test_two_engines_serve_nearly_twice_as_much() -> None:
    one = capacity_requests_per_s(FLEET, REFERENCE)
    two = capacity_requests_per_s(replace(FLEET, engines=2), REFERENCE)
    assert two == pytest.approx(2 * one, rel=0.1)


def test_values_move_what_an_overloaded_engine_serves_first() -> None:
    scenario = drawn("stationary", load=1.3)
    vip = scenario.workload.class_index == 0
    fcfs = play(scenario, replace(FLEET, discipline=Discipline.FCFS), value_shares)
    apq = play(scenario, replace(FLEET, discipline=Discipline.APQ), value_shares)
    assert np.median(apq.ttft_s[vip]) < 0.5 * np.median(fcfs.ttft_s[vip])


def test_a_request_that_no_engine_can_hold_is_refused() -> None:
    with pytest.raises(RequestTooLarge, match="65537"):
        play(lone(REFERENCE_ENGINE.engine.kv_blocks * 16, 1), FLEET, uniform_shares)


def test_a_scenario_without_requests_is_over_at_once() -> None:
    nothing = lone(1, 1).workload.between(5.0, 6.0)
    played = play(Scenario.steady("nothing", nothing, 60.0), FLEET, uniform_shares)
    assert len(played.ttft_s) == 0
