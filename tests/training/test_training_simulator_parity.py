"""Every decision of the simulator is the plugin's."""

from dataclasses import asdict, replace

import numpy as np
import pytest
from fleets import CLASSES, ENGINE, fleets, seeds, weight_rows, workload_of, workloads
from hypothesis import given, settings
from hypothesis import strategies as st
from obvious_engine import Engine, Request, request_of
from obvious_fleet import simulate_obviously
from plugin_terms import step_time_model, table_of

from dataplane import budget as plugin_budget
from dataplane.budget import Demand, Pace, PrefillCap
from dataplane.config import PreemptionSettings
from dataplane.weights import WeightTable
from training.simulator.budget import capped_tokens, share_by_weight
from training.simulator.disciplines import append
from training.simulator.displacement import find_victims
from training.simulator.model import Discipline, Fleet, Preemption
from training.simulator.rollout import simulate
from training.simulator.scene import Scene, asks_of, scene_of
from training.simulator.shaping import share_step
from training.simulator.state import State
from training.simulator.workload import Workload

TICKS = 12
TIMES = ("dispatched_s", "first_token_s", "finished_s")


@pytest.mark.parametrize("discipline", Discipline)
@settings(max_examples=150, deadline=None)
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


@settings(max_examples=60, deadline=None)
@given(seed=seeds)
def test_caps_are_the_plugins_to_the_token(seed: int) -> None:
    """One after the other, as each spends what the next ones have."""
    rng = np.random.default_rng(seed)
    engine = replace(ENGINE, prefill_s_per_token=3e-4)
    workload = workload_of(engine.slots, 1.0, seed)
    state = State.initial(Fleet(engine), requests=len(workload), classes=len(CLASSES))
    scene = scene_of(Fleet(engine), workload, state, ticks=1)
    cap, model = PrefillCap(), step_time_model(engine)
    now_s = 0.0
    for _ in range(60):
        now_s += rng.exponential(rng.choice([0.05, 2.0]))
        running = int(rng.integers(1, engine.slots + 1))
        used_blocks = int(rng.integers(0, engine.kv_blocks))
        due_s = now_s + rng.choice([-0.5, 0.03, 0.2, np.inf], len(CLASSES))
        paced = bool(rng.integers(2))
        demand, full = int(rng.integers(1, 500)), engine.step_tokens - running
        state.engines["running"] = running
        state.engines["free_blocks"] = engine.kv_blocks - used_blocks
        state.queues["due_s"] = due_s
        expected = cap.tokens(
            model=model,
            paces=[
                Pace(one.slo.tpot_s, float(due) - now_s)
                for one, due in zip(CLASSES, due_s, strict=True)
                if paced and one.slo.tpot_s and due < np.inf
            ],
            decoding=running,
            kv_tokens=used_blocks * engine.block_tokens,
            full_tokens=full,
            demand_tokens=demand,
            now_s=now_s,
        )
        assert capped_tokens(scene, 0, paced, running, full, demand, now_s) == expected
    assert cap.capped_steps


@settings(max_examples=600, deadline=None)
@given(seed=seeds)
def test_those_who_give_way_are_the_plugins(seed: int) -> None:
    """Of many small requests, in little memory, for one that may be large."""
    scene, engine, table = crowded(seed)
    expected = engine.displacement(table, NOW_S)
    r, count = find_victims(scene, 0, NOW_S)
    if expected is None:
        assert (r, count) == (-1, 0)
    else:
        assert f"r{r}" == expected.beneficiary
        victims = scene.slots["victim"][0, :count].tolist()
        assert [f"r{victim}" for victim in victims] == [
            victim.request_id for victim in expected.victims
        ]


@settings(max_examples=600, deadline=None)
@given(seed=seeds)
def test_what_a_step_may_hold_is_the_plugins_plan(seed: int) -> None:
    """With prompts and decodes under way, and more waiting than finds slots or memory."""
    scene, engine, table = crowded(seed)
    for now_s in (NOW_S, NOW_S + 0.01, NOW_S + 0.5):
        engine.queue.begin_step(table, now_s)
        expected = engine.plan(table, now_s)
        scene.slots["allowed"] = -1
        assert share_step(scene, 0, now_s) == (expected.tokens or engine.fleet.engine.step_tokens)
        allowed = {
            f"r{slot.request}": int(slot.allowed)
            for slot in scene.slots[0, : len(engine.running)]
            if slot.allowed >= 0
        }
        assert allowed == expected.prefill_tokens


NOW_S = 8.0


def crowded(seed: int) -> tuple[Scene, Engine, WeightTable]:
    """An engine with much to do, as the simulator sees it and as the plugin does."""
    rng = np.random.default_rng(seed)
    fleet = Fleet(
        replace(ENGINE, slots=12, kv_blocks=60, block_tokens=8),
        preemption=Preemption(
            min_run_s=1.0, recompute_share=float(rng.choice([1e-4, 2e-4, 3e-4, 0.5]))
        ),
    )
    workload = workload_of(20, 8.0, seed)
    state = State.initial(fleet, requests=len(workload), classes=len(CLASSES))
    scene = scene_of(fleet, workload, state, ticks=1)
    requests = [request_of(fleet, workload, number) for number in range(len(workload))]
    by_id = {one.ticket.request_id: one for one in requests}
    engine = Engine(fleet, CLASSES, by_id, scene.series)
    running = int(rng.integers(4, 13))
    for one in requests[:running]:
        ticket, computed = one.ticket, int(rng.integers(1, 32))
        decodes = bool(rng.integers(2))
        one.computed = min(ticket.prompt_tokens, computed)
        one.target = one.computed if decodes else ticket.prompt_tokens
        engine.meter.arrived(ticket)
        engine.meter.dispatched(ticket, NOW_S - float(rng.uniform(0.8, 4.0)))
        ticket.displaced = int(rng.choice(3, p=[0.7, 0.2, 0.1]))
        if decodes:
            ticket.generated_tokens = int(rng.integers(1, 20))
            ticket.first_token_s = NOW_S - ticket.generated_tokens * float(rng.uniform(0.0, 0.1))
        engine.running.append(one)
        _seat(scene, one, engine.blocks(one.computed))
    state.engines["running"], state.engines["free_blocks"] = running, engine.free_blocks
    state.engines["credit_s"] = 1.0
    engine.shaping.cap._credit_s = 1.0
    row = np.sort(weight_rows(seed, 1, len(CLASSES))[0])[::-1]
    state.queues["weight"] = row
    for one in requests[running:]:
        engine.add(one)
        append(scene, 0, one.number)
    table = table_of(fleet, CLASSES, row)
    engine.queue.begin_step(table, NOW_S)
    return scene, engine, table


def _seat(scene: Scene, one: Request, blocks: int) -> None:
    """Make a running request of the plugin's engine one of the simulator's."""
    record, ticket = scene.requests[one.number], one.ticket
    record.computed, record.target, record.blocks = one.computed, one.target, blocks
    record.admission, record.admitted_s = ticket.admission, ticket.admitted_s
    record.dispatched_s, record.displaced = ticket.dispatched_s, ticket.displaced
    record.generated = ticket.generated_tokens
    if ticket.first_token_s is not None:
        record.first_token_s = ticket.first_token_s
    scene.slots[0, one.number].request = one.number
    scene.queues[0, one.kind].running += 1


def test_preemption_has_the_plugins_defaults() -> None:
    plugins = PreemptionSettings().model_dump()
    assert asdict(Preemption()).items() <= plugins.items()
    assert plugins.keys() - asdict(Preemption()) == {"enabled", "recompute_tokens_per_min"}


def _same(simulated_s: float, expected_s: float | None) -> bool:
    if expected_s is None or np.isnan(expected_s):
        return bool(np.isnan(simulated_s))
    return simulated_s == expected_s
