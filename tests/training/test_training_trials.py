"""The evidence: fair pairs, a worse candidate shows, and nothing stands in for a measurement."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from steering_networks import leaning, lived_history

from cli.guardrails import Guardrails
from models.bundle import Bundle
from models.features import schema_hash
from models.window import Window
from training.gate import passed
from training.rehearsal.traffic import own_traffic
from training.rehearsal.worlds import OwnWorld, regime_worlds
from training.simulator.calibration import REFERENCE_ENGINE
from training.simulator.model import Fleet
from training.simulator.regimes import REGIMES
from training.simulator.traffic import REFERENCE
from training.stretches import split
from training.trials.evidence import Case, TrialOptions, gather
from training.trials.judgement import CHAMPION, judgement_of
from training.trials.pair import Contest

CLASSES = tuple(kind.task_class for kind in REFERENCE)
FLEET = Fleet(REFERENCE_ENGINE.engine)
RAILS = Guardrails(0.2, tuple(one.floor for one in CLASSES))


@pytest.fixture(scope="module")
def lived() -> Window:
    return lived_history(600.0, 0.95)


@pytest.fixture(scope="module")
def worlds(lived: Window) -> list[OwnWorld]:
    traffic = own_traffic([lived], CLASSES, FLEET.engine)
    return regime_worlds("stationary", traffic, FLEET, count=4, first_seed=1, duration_s=120.0)


def test_a_candidate_that_does_as_the_champion_differs_in_nothing(worlds: list[OwnWorld]) -> None:
    for champion in (None, Bundle.untrained(1)):  # an untrained network's weights are the rule's
        pair = Contest(champion, Bundle.untrained(), RAILS)(worlds[0])
        assert pair.champion == pair.candidate
        assert pair.outputs > 0
        assert pair.not_finite == 0


def test_both_sides_of_a_pair_are_measured_alike(worlds: list[OwnWorld]) -> None:
    one = Contest(leaning(-2.0), leaning(1.0), RAILS)(worlds[1])
    other = Contest(leaning(1.0), leaning(-2.0), RAILS)(worlds[1])
    assert (one.champion, one.candidate) == (other.candidate, other.champion)
    assert one.champion != one.candidate


def test_a_network_that_gives_no_numbers_is_counted_and_the_rule_plays(
    worlds: list[OwnWorld],
) -> None:
    broken = leaning(1.0)
    with torch.no_grad():
        broken.network.emit.bias[0] = torch.nan
    pair = Contest(None, broken, RAILS)(worlds[0])
    assert pair.not_finite == pair.outputs > 0
    assert pair.candidate == pair.champion


def test_a_world_without_a_request_is_no_division_by_zero(worlds: list[OwnWorld]) -> None:
    quiet = replace(worlds[0], load=0.0)
    pair = Contest(None, Bundle.untrained(), RAILS)(quiet)
    assert (pair.champion.loss, pair.champion.worst_attainment_ratio) == (0.0, 1.0)
    assert pair.champion.tokens_per_s == 0.0


@pytest.mark.system
def test_evidence_is_whole_and_a_worse_candidate_does_not_pass(lived: Window) -> None:
    parts = split(lived)
    case = Case(
        candidate=leaning(-4.0),
        champion=None,
        classes=CLASSES,
        learned=parts.learned,
        held_out=parts.held_out,
        fleet=FLEET,
        newest=REFERENCE_ENGINE,
    )
    done: list[str] = []
    options = TrialOptions(pairs=20, replay_factor=1, duration_s=100.0, processes=1)
    evidence = gather(case, RAILS, options, done.append)
    assert Counter(done) == {**dict.fromkeys(REGIMES, 20), "replay": 20}
    assert len(done) == options.total
    assert evidence.schema_hash == evidence.serving_schema_hash == schema_hash()
    assert evidence.calibration_hash == evidence.current_calibration_hash == REFERENCE_ENGINE.hash
    assert all(len(one.loss) == 20 and one.finite for one in (*evidence.regimes, evidence.replay))

    judgement = judgement_of(evidence)
    failed = {one.name for one in judgement.verdicts if not one.passed}
    assert {"regressions", "replay"} <= failed
    assert failed <= {"regressions", "replay", "worst_class"}
    assert not passed(judgement.verdicts)
    replay = judgement.regimes[-1]
    assert replay.regime == "replay"
    assert replay.loss["model"] > replay.loss[CHAMPION]


def test_without_anything_held_out_there_is_no_evidence(lived: Window) -> None:
    case = Case(Bundle.untrained(), None, CLASSES, [lived], (), FLEET, REFERENCE_ENGINE)
    with pytest.raises(ValueError, match="held out"):
        gather(case, RAILS, TrialOptions(), print)
