"""The closed loop is the simulator's run, seen and steered as a control plane would."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from fleets import CLASSES, ENGINE, workload_of

from models.bundle import Bundle
from models.classes import TaskClass
from models.loss import Fates, slo_loss
from models.window import STEP_S, STEPS, Signal, Window
from training.closed_loop.controller import (
    BundleController,
    RuleController,
    Shares,
    StaticController,
)
from training.closed_loop.plant import fleet_at
from training.closed_loop.steer import Steered, steer
from training.simulator.model import Fleet
from training.simulator.play import play
from training.simulator.policies import value_shares
from training.simulator.regimes import REGIMES, draw_scenario
from training.simulator.rollout import simulate
from training.simulator.scenario import Scenario
from training.simulator.scene import Measurement
from training.simulator.traffic import REFERENCE
from training.simulator.workload import Workload

FLEET = Fleet(ENGINE)
LARGE = Fleet(replace(ENGINE, kv_blocks=1000))
VALUE = StaticController(value_shares(CLASSES))


def scenario_of(name: str, seed: int = 3) -> Scenario:
    return draw_scenario(name, REFERENCE, requests_per_s=6.0, duration_s=150.0, seed=seed)


def busy(requests: int = 600) -> Scenario:
    return Scenario.steady("busy", workload_of(requests, 8.0, 5))


def finished_in(steered: Steered, workload: Workload, tick: int) -> np.ndarray:
    """[N] which requests' last token came in the tick; the engine has no overhead here."""
    end_s = workload.arrival_s + steered.outcomes.e2e_s
    return (end_s >= tick * STEP_S) & (end_s < (tick + 1) * STEP_S)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """A small network gains nothing from more, and waits for the machine's other work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", REGIMES)
def test_constant_weights_give_the_simulators_own_run(name: str) -> None:
    scenario = scenario_of(name)
    controller = StaticController(value_shares(scenario.workload.classes))
    steered = steer(scenario, LARGE, controller, drain_s=3000.0)
    played = play(scenario, LARGE, value_shares)
    np.testing.assert_array_equal(steered.outcomes.ttft_s, played.ttft_s)
    np.testing.assert_array_equal(steered.outcomes.e2e_s, played.e2e_s)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("controller", [RuleController(), BundleController(Bundle.untrained())])
def test_a_kept_state_goes_on_as_the_run_did(
    controller: RuleController | BundleController,
) -> None:
    steered = steer(busy(), FLEET, controller, keep=(0, 7))
    assert sorted(steered.states) == [0, 7]
    for tick, state in steered.states.items():
        rest = simulate(FLEET, busy().workload, steered.shares[tick:], state)
        np.testing.assert_array_equal(rest.series, steered.series[tick:])


def test_the_same_arguments_give_the_same_run() -> None:
    first, second = (steer(busy(), FLEET, RuleController()) for _ in range(2))
    assert first.series.tobytes() == second.series.tobytes()
    assert first.shares.tobytes() == second.shares.tobytes()
    assert first.loss.total == second.loss.total


@pytest.mark.usefixtures("one_thread")
def test_an_untrained_bundle_steers_as_the_rule() -> None:
    by_rule = steer(busy(), FLEET, RuleController())
    by_bundle = steer(busy(), FLEET, BundleController(Bundle.untrained()))
    np.testing.assert_allclose(by_bundle.shares, by_rule.shares, rtol=1e-12)


def test_signals_are_what_happened_to_the_requests() -> None:
    workload = busy().workload
    steered = steer(busy(), FLEET, VALUE)
    outcomes, tick, kind = steered.outcomes, 9, 1
    newest = {name: rows[kind, -1] for name, rows in steered.windows[tick + 1].signals.items()}
    own = workload.class_index == kind
    arrived_s, now_s = workload.arrival_s, (tick + 1) * STEP_S
    arrived = own & (arrived_s >= tick * STEP_S) & (arrived_s < now_s)
    ended = own & finished_in(steered, workload, tick)
    first_s = arrived_s + outcomes.ttft_s
    first = own & (first_s >= tick * STEP_S) & (first_s < now_s)
    assert newest[Signal.ARRIVALS_PER_S] == pytest.approx(arrived.sum() / STEP_S)
    assert newest[Signal.FINISHED_PER_S] == pytest.approx(ended.sum() / STEP_S)
    assert newest[Signal.VIOLATIONS_PER_S] == pytest.approx((ended & ~outcomes.met).sum() / STEP_S)
    assert newest[Signal.PROMPT_TOKENS_PER_S] == pytest.approx(
        workload.prompt_tokens[arrived].sum() / STEP_S
    )
    assert newest[Signal.TTFT_MEAN_S] == pytest.approx(outcomes.ttft_s[first].mean())
    waits = own & (arrived_s < now_s) & (arrived_s + outcomes.queue_s >= now_s)
    assert newest[Signal.WAITING] >= waits.sum() > 0
    assert newest[Signal.OLDEST_WAIT_S] >= (now_s - arrived_s[waits]).max()


def test_before_the_first_tick_nothing_is_known() -> None:
    steered = steer(busy(), FLEET, VALUE)
    for tick in (0, 4):
        for values in steered.windows[tick].signals.values():
            assert np.isnan(values[:, : STEPS - tick]).all()
    waiting = steered.windows[STEPS + 3].signals[Signal.WAITING]
    assert np.isfinite(waiting).all()


def test_the_controller_sees_nothing_of_what_is_to_come() -> None:
    whole, cut_s = busy().workload, 40.0
    begun = Scenario.steady("begun", whole.between(0.0, cut_s))
    one, other = (steer(scenario, FLEET, RuleController()) for scenario in (busy(), begun))
    ticks = round(cut_s / STEP_S)
    np.testing.assert_array_equal(one.shares[: ticks + 1], other.shares[: ticks + 1])
    assert not np.array_equal(one.shares[ticks + 3], other.shares[ticks + 3])


def test_errors_are_violations_and_wholly_lost() -> None:
    scenario = busy(300)
    fails = np.zeros(300, dtype=np.bool_)
    fails[50:80] = True
    failing = replace(scenario, fails=fails)
    well, ill = (steer(one, FLEET, VALUE) for one in (scenario, failing))
    # The engines do the same work: who was late is late still.
    in_violation = ~well.outcomes.met | fails
    expected = [in_violation[scenario.workload.class_index == kind].sum() for kind in range(3)]
    np.testing.assert_array_equal(ill.series[:, :, Measurement.VIOLATED].sum(axis=0), expected)
    assert ill.loss.mean > well.loss.mean


def test_the_loss_is_that_of_the_outcomes() -> None:
    scenario = busy()
    steered = steer(scenario, FLEET, VALUE)
    outcomes, workload = steered.outcomes, scenario.workload
    fates = Fates(
        class_index=workload.class_index,
        age_s=np.full(len(workload), 1e6),
        ttft_s=outcomes.ttft_s,
        tpot_s=outcomes.tpot_s,
        e2e_s=outcomes.e2e_s,
        lost=~outcomes.finished,
    )
    assert steered.loss.total == pytest.approx(slo_loss(fates, CLASSES).total)
    assert steered.loss.total > 0


def test_what_is_not_served_when_the_drain_ends_is_lost() -> None:
    hasty = steer(busy(), FLEET, VALUE, drain_s=0.0)
    unserved = ~hasty.outcomes.finished
    assert unserved.any()
    worth = np.array([one.value for one in CLASSES])[busy().workload.class_index]
    assert hasty.loss.mean >= worth[unserved].sum() / worth.sum()


def test_the_guard_has_the_last_word() -> None:
    calls = []

    def guard(wanted: Shares, previous: Shares) -> Shares:
        calls.append((wanted, previous))
        return 0.5 * previous + 0.5 * wanted / wanted.sum()

    wanted = np.array([1.0, 1.0, 2.0])
    steered = steer(busy(), FLEET, StaticController(wanted), guard=guard)
    np.testing.assert_array_equal(calls[0][1], value_shares(CLASSES))
    np.testing.assert_array_equal([previous for _, previous in calls[1:]], steered.shares[:-1])
    np.testing.assert_allclose(steered.shares[-1], wanted / wanted.sum(), atol=1e-5)


def test_the_fleet_follows_the_course_of_its_speed() -> None:
    scenario = scenario_of("service-drift")
    speeds = [fleet_at(scenario, FLEET, tick).engine.base_s for tick in range(40)]
    assert speeds[0] == ENGINE.base_s
    assert speeds[-1] > 1.1 * ENGINE.base_s
    assert speeds == sorted(speeds)


@pytest.mark.parametrize("weights", [[1.0, 1.0], [1.0, 1.0, 0.0], [1.0, 1.0, np.nan]])
def test_weights_that_are_none_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="positive weights"):
        steer(busy(), FLEET, StaticController(np.array(weights)))


def test_a_fleet_with_ticks_of_its_own_is_refused() -> None:
    with pytest.raises(ValueError, match="tick"):
        steer(busy(), Fleet(ENGINE, tick_s=2.0), VALUE)


class _ByTick:
    """A weight that grows with the ticks."""

    def weights(self, _window: Window, classes: Sequence[TaskClass], tick: int) -> Shares:
        return np.array([1.0 + tick, *(1.0 for _ in classes[1:])])


def test_ticks_are_counted_from_zero() -> None:
    shares = steer(busy(), FLEET, _ByTick()).shares
    np.testing.assert_allclose(shares[:, 0] / shares[:, 1], 1.0 + np.arange(len(shares)))
