"""Models on trial: real streams, a real store, a registry in memory, and hours in seconds."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from door import Door
from fleet import Fleet
from memory_registry import MemoryRegistry
from virtual_clock import VirtualClock

from controlplane.canary import Outcome, TrialLimits
from controlplane.publisher import Publisher
from controlplane.snapshot import Discipline
from controlplane.status import EngineStatus
from controlplane.store.sqlite import EventKind, SqliteStore
from controlplane.trials import Trials
from models.succession import objection_to
from models.verdicts import Verdict, verdicts_to_json

BLOCK_TICKS = 4
PAIR_TICKS = 2 * BLOCK_TICKS

NewTrials = Callable[[Callable[[], tuple[EngineStatus, ...]]], Trials]
NewFleet = Callable[[int], Fleet]
ENDED = EventKind.TRIAL_ENDED


def details(store: SqliteStore, *kinds: EventKind) -> list[str]:
    return [event.detail for event in store.events() if event.kind in kinds]


async def test_canaries_run_the_challenger_by_turns_and_each_engine_sees_only_newer_versions(
    new_fleet: NewFleet, registry: MemoryRegistry
) -> None:
    fleet = new_fleet(3)
    registry.train("same")
    await fleet.pairs(3)
    ran = {engine.engine_id: set(engine.models) for engine in fleet.engines}
    (canary,) = (engine for engine in fleet.engines if "same" in engine.models)
    assert sorted(map(sorted, ran.values())) == [["1"], ["1"], ["1", "same"]]
    turns = canary.models[canary.models.index("same") :]
    assert abs(turns.count("same") - turns.count("1")) <= 2 * BLOCK_TICKS
    for engine in fleet.engines:
        assert all(later > earlier for earlier, later in pairwise(engine.versions))
    status = fleet.trials.status
    assert status is not None
    assert status.startswith("challenger same on trial against champion 1: loss +0.0000")
    labels = {"kind": "trial", "challenger": "same", "champion": "1"}
    assert fleet.metric("canary_running", **labels) == 1
    assert fleet.metric("canary_blocks_total", result="void") == 0


async def test_what_a_canary_runs_can_be_explained_and_others_are_told_the_champion(
    new_fleet: NewFleet, registry: MemoryRegistry, door: Door
) -> None:
    fleet = new_fleet(2)
    registry.train("same")
    canary = None
    while canary is None:
        await fleet.tick()
        canary = next((one for one in fleet.engines if one.models[-1] == "same"), None)
    decision = await door.publisher.decision(canary.versions[-1])
    assert decision is not None
    assert decision.plan.model_version == "same"
    assert decision.plan.mode_reason == "canary: challenger same"
    assert all(one.features for one in decision.plan.classes)
    assert door.broadcast.latest is not None
    assert door.broadcast.latest.model_version == "1"
    assert door.broadcast.latest.version > canary.versions[-1]
    assert fleet.metric("canary_engines") == 1


async def test_a_harmful_challenger_is_stopped_soon_and_never_tried_again(
    new_fleet: NewFleet, registry: MemoryRegistry, store: SqliteStore
) -> None:
    fleet = new_fleet(3)
    registry.train("harmful")
    assert 4 <= await fleet.until_over() <= 12
    assert registry.aliases["champion"] == "1"
    objection = objection_to(registry.tags["harmful"])
    assert objection is not None
    assert objection.startswith("it did harm on trial: loss +0.55")
    (ended,) = details(store, ENDED)
    assert "challenger harmful on trial against champion 1: harm: loss +0.55" in ended
    assert ended.endswith("; version 1 stays")
    assert fleet.metric("canary_outcomes_total", kind="trial", outcome="harm") == 1
    ((version, child),) = registry.children
    assert (version, child.passed) == ("harmful", False)
    await fleet.ticks(2 * PAIR_TICKS)
    assert fleet.trials.status is None
    assert {engine.models[-1] for engine in fleet.engines} == {"1"}
    assert len(details(store, EventKind.TRIAL_STARTED)) == 1


async def test_a_fine_challenger_is_promoted_and_then_watched(
    new_fleet: NewFleet, registry: MemoryRegistry, store: SqliteStore, clock: VirtualClock
) -> None:
    fleet = new_fleet(3)
    registry.train("fine")
    registry.at = at(clock)
    assert await fleet.until_over() <= 12
    assert registry.aliases == {"champion": "fine", "challenger": "fine", "previous": "1"}
    (change,) = registry.trail
    assert change.actor == "canary"
    assert change.reason.startswith("canary: loss -0.30")
    await fleet.ticks(2 * PAIR_TICKS)
    status = fleet.trials.status
    assert status is not None
    assert status.startswith("new champion fine watched against 1, the one before")
    by_version = [set(engine.models[-2 * BLOCK_TICKS :]) for engine in fleet.engines]
    assert sorted(map(sorted, by_version)) == [["1", "fine"], ["fine"], ["fine"]]
    await fleet.until_over()
    await fleet.ticks(PAIR_TICKS)
    assert fleet.trials.status is None, "a promotion is watched once"
    assert registry.aliases["champion"] == "fine"
    assert [detail.rpartition("; ")[2] for detail in details(store, ENDED)] == [
        "promoted",
        "version fine stays",
    ]


async def test_a_champion_promoted_by_hand_that_does_harm_is_rolled_back(
    new_fleet: NewFleet, registry: MemoryRegistry, store: SqliteStore, clock: VirtualClock
) -> None:
    fleet = new_fleet(2)
    await fleet.ticks(2)
    registry.train("harmful", tags={})
    registry.at = at(clock)
    registry.promote("harmful", actor="eve", reason="it feels better")
    assert await fleet.until_over() <= 12
    assert registry.aliases["champion"] == "1"
    assert registry.trail[-1].actor == "canary"
    assert objection_to(registry.tags["harmful"]) is not None
    (ended,) = details(store, ENDED)
    assert ended.endswith("; rolled back to version 1")
    await fleet.ticks(2)
    assert {engine.models[-1] for engine in fleet.engines} == {"1"}


async def test_an_old_promotion_is_not_watched_and_a_watch_ends_with_its_time(
    new_fleet: NewFleet, registry: MemoryRegistry, store: SqliteStore, clock: VirtualClock
) -> None:
    fleet = new_fleet(1)
    registry.train("same", tags={})
    registry.promote("same", actor="eve", reason="long ago")
    await fleet.ticks(2)
    assert fleet.trials.status is None
    registry.train("fine", tags={})
    registry.at = at(clock)
    registry.promote("fine", actor="eve", reason="just now")
    await fleet.ticks(2)
    assert fleet.trials.status is not None
    clock.elapsed_s += 3600.0
    await fleet.ticks(2)
    assert fleet.trials.status is None
    (ended,) = details(store, ENDED)
    assert ended.endswith("undecided: the time to watch is up; it stops")


async def test_one_engine_alone_changes_sides(
    new_fleet: NewFleet, registry: MemoryRegistry
) -> None:
    fleet = new_fleet(1)
    registry.train("fine")
    assert await fleet.until_over() <= 12
    assert set(fleet.engines[0].models) == {"1", "fine"}
    assert all(later > earlier for earlier, later in pairwise(fleet.engines[0].versions))


async def test_without_engines_or_passed_gates_nothing_is_tried(
    new_fleet: NewFleet, registry: MemoryRegistry, store: SqliteStore
) -> None:
    empty = new_fleet(0)
    registry.train("fine")
    await empty.ticks(3)
    assert empty.trials.status is None
    fleet = new_fleet(1)
    failed = verdicts_to_json([Verdict("replay", passed=False, reason="worse")])
    for tags in ({}, {"gate.verdicts": failed}):
        registry.train("fine", tags=tags)
        await fleet.ticks(3)
        assert fleet.trials.status is None
    assert details(store, EventKind.TRIAL_STARTED) == []


async def test_a_trial_that_stays_undecided_stops_for_good(
    new_fleet: NewFleet, registry: MemoryRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = new_fleet(2)
    limits = TrialLimits(alpha=0.05, margin=0.5, max_pairs=2)
    monkeypatch.setattr(fleet.trials, "_policy", replace(fleet.trials._policy, limits=limits))
    registry.train("same")
    assert await fleet.until_over() == 2
    assert registry.aliases["champion"] == "1"
    assert registry.tags["same"]["canary.outcome"] == "undecided"
    assert objection_to(registry.tags["same"]) is None, "an operator may promote it"
    await fleet.ticks(PAIR_TICKS)
    assert fleet.trials.status is None


async def test_a_restarted_control_plane_goes_on_with_the_pairs_that_it_had(
    new_fleet: NewFleet, new_trials: NewTrials, registry: MemoryRegistry, store: SqliteStore
) -> None:
    fleet = new_fleet(2)
    registry.train("harmful")
    await fleet.pairs(3)
    before = store.trial()
    assert before is not None
    assert len(before.differences) == 3
    fleet.replace_trials(new_trials(lambda: fleet.door.push.engines))
    await fleet.tick()
    (resumed,) = details(store, EventKind.TRIAL_RESUMED)
    assert "over 3 pairs of blocks" in resumed
    pairs = await fleet.until_over()
    after = store.trial()
    assert after is not None
    assert after.differences[:3] == before.differences
    assert (after.outcome, pairs <= 12) == (Outcome.HARM, True)
    assert len(details(store, EventKind.TRIAL_STARTED)) == 1


async def test_a_restart_finds_that_its_trial_is_no_longer_wanted(
    new_fleet: NewFleet, new_trials: NewTrials, registry: MemoryRegistry, store: SqliteStore
) -> None:
    fleet = new_fleet(2)
    registry.train("same")
    await fleet.ticks(PAIR_TICKS)
    fleet.replace_trials(new_trials(lambda: fleet.door.push.engines))
    registry.train("fine")
    await fleet.ticks(2)
    (ended,) = details(store, ENDED)
    assert "undecided: version fine is the challenger now" in ended
    assert fleet.trials.status is not None
    assert "challenger fine" in fleet.trials.status
    assert "canary.outcome" not in registry.tags["same"]


@pytest.mark.parametrize("restarts", [True, False], ids=["engine restarts", "stream breaks"])
async def test_a_block_in_which_a_canary_was_away_tells_nothing(
    *, new_fleet: NewFleet, registry: MemoryRegistry, restarts: bool
) -> None:
    fleet = new_fleet(1)
    registry.train("harmful")
    await fleet.pairs(1)
    await fleet.tick()  # past the wash-out of the next block
    (engine,) = fleet.engines
    if restarts:
        await engine.restart()
    else:
        await engine.leave()
        engine.connect()
    await fleet.ticks(PAIR_TICKS)
    assert fleet.metric("canary_pairs") == 1
    assert fleet.metric("canary_blocks_total", result="void") == 1
    await fleet.ticks(PAIR_TICKS)
    assert fleet.metric("canary_pairs") == 2


async def test_a_missed_window_voids_its_block_and_canaries_get_what_all_get(
    new_fleet: NewFleet, registry: MemoryRegistry
) -> None:
    fleet = new_fleet(1)
    registry.train("same")
    while "same" not in fleet.engines[0].models:
        await fleet.tick()
    fleet.blind = True
    await fleet.tick()
    assert fleet.engines[0].snapshot.model_version == ""
    assert "there is no forecast on a window" in str(fleet.trials.status)
    fleet.blind = False
    await fleet.ticks(BLOCK_TICKS)
    assert fleet.metric("canary_blocks_total", result="void") == 1


async def test_a_trial_stands_still_while_weights_have_no_say(
    new_fleet: NewFleet, registry: MemoryRegistry, publisher: Publisher
) -> None:
    fleet = new_fleet(1)
    registry.train("same")
    await fleet.pairs(1)
    await publisher.set_discipline(Discipline.FCFS, actor="eve", reason="to compare")
    await fleet.ticks(PAIR_TICKS)
    assert "stands still: weights have no say under fcfs" in str(fleet.trials.status)
    assert set(fleet.engines[0].models[-BLOCK_TICKS:]) == {"1"}
    assert fleet.metric("canary_pairs") == 1
    await publisher.set_discipline(Discipline.STRICT, actor="eve", reason="enough")
    await fleet.ticks(2 * PAIR_TICKS)
    assert fleet.metric("canary_pairs") == 2


async def test_a_discipline_set_in_a_challengers_turn_leaves_the_canary_its_weights(
    new_fleet: NewFleet, registry: MemoryRegistry, publisher: Publisher
) -> None:
    fleet = new_fleet(1)
    registry.train("same")
    while "same" not in fleet.engines[0].models:
        await fleet.tick()
    await publisher.set_discipline(Discipline.STRICT, actor="eve", reason="to see")
    await fleet.settled()
    assert fleet.engines[0].snapshot.model_version == "same"
    await fleet.ticks(BLOCK_TICKS)
    assert fleet.metric("canary_blocks_total", result="void") == 1


@pytest.mark.parametrize("restarts", [True, False])
async def test_a_registry_that_is_away_delays_the_promotion_and_loses_nothing(
    *,
    new_fleet: NewFleet,
    new_trials: NewTrials,
    registry: MemoryRegistry,
    store: SqliteStore,
    restarts: bool,
) -> None:
    fleet = new_fleet(2)
    registry.train("fine")
    await fleet.ticks(2)
    registry.away = True
    record = store.trial()
    while record is None or record.outcome is Outcome.GOES_ON:
        await fleet.tick()
        record = store.trial()
    await fleet.ticks(3)
    assert registry.aliases["champion"] == "1"
    assert {engine.models[-1] for engine in fleet.engines} == {"1"}
    assert details(store, ENDED) == []
    if restarts:
        fleet.replace_trials(new_trials(lambda: fleet.door.push.engines))
        await fleet.tick()
    registry.away = False
    await fleet.tick()
    assert registry.aliases["champion"] == "fine"
    assert len(registry.trail) == 1
    (ended,) = details(store, ENDED)
    assert ended.endswith("; promoted")


async def test_a_promotion_by_hand_in_the_meantime_stands(
    new_fleet: NewFleet, registry: MemoryRegistry, store: SqliteStore
) -> None:
    fleet = new_fleet(2)
    registry.train("fine")
    await fleet.ticks(PAIR_TICKS)
    registry.tags["other"] = {}
    registry.promote("other", actor="eve", reason="hurry")
    await fleet.ticks(2)
    assert registry.aliases["champion"] == "other"
    first, *_ = details(store, ENDED)
    assert "undecided: version other is champion now" in first
    assert "challenger fine on trial against champion other" in str(fleet.trials.status)


async def test_a_damaged_challenger_is_passed_over_once(
    new_fleet: NewFleet, registry: MemoryRegistry, store: SqliteStore
) -> None:
    fleet = new_fleet(1)
    registry.train("fine")
    registry.corrupt.add("fine")
    await fleet.ticks(4)
    (ended,) = details(store, ENDED)
    assert ended.endswith("never began: version fine is damaged")
    assert fleet.trials.status is None


def at(clock: VirtualClock) -> str:
    return datetime.fromtimestamp(clock.unix_s(), tz=UTC).isoformat()
