"""Trials and what they do to a real registry."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fleet import Fleet

from controlplane.canary import Contest, Kind, Outcome, TrialRecord, contest_for
from controlplane.store.sqlite import EventKind, SqliteStore
from controlplane.trial_outcome import carry_out
from models.bundle import Bundle
from models.errors import PromotionRefused
from models.registry import CHALLENGER, CHAMPION, PREVIOUS, Registry, RegistryLocation, RunRecord
from models.succession import Action
from models.verdicts import Verdict

pytestmark = pytest.mark.system

PASSED = Verdict("replay", passed=True, reason="better")


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    registry = Registry(RegistryLocation(f"sqlite:///{tmp_path}/mlflow.db"))
    registry.ensure_first_version()
    return registry


@pytest.fixture
def late_ratio() -> dict[str, float]:
    return {"1": 0.4, "2": 0.95, "3": 0.1}


def train(registry: Registry) -> str:
    version = registry.register(Bundle.untrained(), alias=CHALLENGER, run=RunRecord("test"))
    registry.record_verdicts(version, [PASSED])
    return version


async def test_a_harmful_challenger_is_refused_and_the_next_one_promoted(
    new_fleet: Callable[[int], Fleet], registry: Registry, store: SqliteStore
) -> None:
    fleet = new_fleet(1)
    assert train(registry) == "2"
    await fleet.until_over()
    with pytest.raises(PromotionRefused, match="it did harm on trial"):
        registry.promote("2", actor="eve", reason="hurry")
    assert train(registry) == "3"
    await fleet.tick()
    await fleet.until_over()
    lineup = registry.lineup()
    assert (lineup.champion, lineup.challenger, lineup.previous) == ("3", "3", "1")
    change = lineup.last_change
    assert change is not None
    assert (change.actor, change.reason[:18]) == ("canary", "canary: loss -0.30")
    ends = [event for event in store.events() if event.kind is EventKind.TRIAL_ENDED]
    assert [event.detail.rpartition("; ")[2] for event in ends] == ["version 1 stays", "promoted"]


def test_carrying_an_outcome_out_twice_changes_nothing_and_a_watch_rolls_back(
    registry: Registry,
) -> None:
    version = train(registry)
    trial = contest_for(registry.lineup(), watched=None, now_unix_s=0.0, watch_s=3600.0)
    assert trial == Contest(Kind.TRIAL, version, "1")
    record = TrialRecord(trial, 0.0, (-0.1, -0.3), Outcome.NO_WORSE, "loss -0.2")
    assert carry_out(registry, record) == "promoted"
    assert carry_out(registry, record) == "it was promoted already"
    assert len(registry.history()) == 1

    watch = contest_for(registry.lineup(), watched=None, now_unix_s=0.0, watch_s=3600.0)
    assert watch == Contest(Kind.WATCH, version, "1", registry.history()[0].at)
    harm = replace(record, contest=watch, outcome=Outcome.HARM, reason="loss +0.4")
    assert carry_out(registry, replace(harm, outcome=Outcome.UNDECIDED)) == "version 2 stays"
    assert carry_out(registry, harm) == "rolled back to version 1"
    assert carry_out(registry, harm) == "version 1 is champion now, and stays"
    lineup = registry.lineup()
    assert (lineup.champion, lineup.previous) == ("1", None)
    assert lineup.last_change is not None
    assert lineup.last_change.action is Action.ROLL_BACK
    assert contest_for(lineup, watched=None, now_unix_s=0.0, watch_s=3600.0) is None
    aliases = {alias for one in registry.versions() for alias in one.aliases}
    assert aliases == {CHAMPION, CHALLENGER}, PREVIOUS
