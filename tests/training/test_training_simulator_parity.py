"""Every decision of the simulator is the plugin's."""

from dataclasses import replace

import numpy as np
import pytest
from fleets import fleets, seeds, weight_rows, workloads
from hypothesis import given, settings
from hypothesis import strategies as st
from obvious_engine import simulate_obviously

from dataplane import budget as plugin_budget
from dataplane.budget import Demand
from training.simulator.budget import share_by_weight
from training.simulator.model import Discipline, Fleet
from training.simulator.rollout import simulate
from training.simulator.scene import asks_of
from training.simulator.workload import Workload

TICKS = 12
TIMES = ("dispatched_s", "first_token_s", "finished_s")


@pytest.mark.parametrize("discipline", Discipline)
@settings(max_examples=40, deadline=None)
@given(fleet=fleets, workload=workloads(), seed=seeds)
def test_every_time_is_that_of_an_engine_in_which_the_plugin_itself_decides(
    discipline: Discipline, fleet: Fleet, workload: Workload, seed: int
) -> None:
    fleet = replace(fleet, discipline=discipline)
    weights = weight_rows(seed, TICKS, len(workload.classes))
    run = simulate(fleet, workload, weights)
    obvious = simulate_obviously(fleet, workload, weights)
    for number, request in enumerate(obvious.requests):
        simulated, ticket = run.state.requests[number], request.ticket
        expected = (ticket.dispatched_s, ticket.first_token_s, request.finished_s)
        for name, time_s in zip(TIMES, expected, strict=True):
            assert _same(float(simulated[name]), time_s), (number, name)
        assert int(simulated.generated) == ticket.generated_tokens
        assert int(simulated.preemptions) == ticket.preemptions
    np.testing.assert_allclose(run.series, obvious.series, rtol=1e-12, atol=1e-9)


@settings(max_examples=300, deadline=None)
@given(
    demands=st.lists(
        st.builds(
            Demand,
            st.sampled_from([1e-9, 0.1, 0.25, 1.0, 1.0, 3.0, 1e6]) | st.floats(1e-6, 1e6),
            st.integers(1, 5000),
        ),
        min_size=1,
        max_size=8,
    ),
    budget_tokens=st.integers(0, 9000),
)
def test_shares_are_the_plugins_to_the_token(demands: list[Demand], budget_tokens: int) -> None:
    asks = asks_of(len(demands))[0]
    asks["weight"] = [demand.weight for demand in demands]
    asks["wanted"] = [demand.tokens for demand in demands]
    share_by_weight(asks, len(demands), budget_tokens)
    assert asks["share"].tolist() == plugin_budget.share_by_weight(demands, budget_tokens)


def _same(simulated_s: float, expected_s: float | None) -> bool:
    if expected_s is None or np.isnan(expected_s):
        return bool(np.isnan(simulated_s))
    return simulated_s == expected_s
