import dataclasses
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.classes import TaskClass
from models.window import STEP_S, Signal, Window
from training.dataset import build_examples, examples_of_moments
from training.errors import BadFile
from training.online.reservoir import MOMENT_STEPS, Reservoir, reindexed
from training.online.strata import MIXED, Stratum, stratum

NAMES = ("vip", "free")


def moment(
    end_s: float, *, arrivals: tuple[float, float] = (1.0, 1.0), violated: float = 0.0
) -> Window:
    shape = (2, MOMENT_STEPS)
    rates = np.broadcast_to(np.array(arrivals)[:, None], shape)
    signals = {signal: np.zeros(shape) for signal in Signal}
    signals[Signal.ARRIVALS_PER_S] = rates
    signals[Signal.FINISHED_PER_S] = rates
    signals[Signal.VIOLATIONS_PER_S] = rates * violated
    signals[Signal.PROMPT_TOKENS_PER_S] = rates * 100.0
    signals[Signal.GENERATION_TOKENS_PER_S] = rates * 10.0
    return Window(end_s, STEP_S, NAMES, signals)


KINDS = (
    {"arrivals": (1.0, 1.0)},
    {"arrivals": (30.0, 1.0)},
    {"arrivals": (1.0, 30.0), "violated": 0.9},
)


def filled(kinds: list[int], *, capacity: int, seed: int = 0) -> Reservoir:
    reservoir = Reservoir(capacity, seed)
    for number, kind in enumerate(kinds):
        reservoir.offer(moment(float(number), **KINDS[kind]))
    return reservoir


def ends(reservoir: Reservoir) -> list[float]:
    return [kept.end_unix_s for kept in reservoir.moments]


def test_kinds_are_told_by_load_mix_and_errors() -> None:
    quiet, vip_rush, bad_rush = (stratum(moment(0.0, **kind)) for kind in KINDS)
    assert (quiet.mix, quiet.errors) == (MIXED, 1)  # no violation; the prior still shows
    assert vip_rush.mix == "vip"
    assert vip_rush.load > quiet.load
    assert (bad_rush.mix, bad_rush.errors) == ("free", 3)


def test_unknown_window_is_a_kind_of_its_own() -> None:
    signals = {signal: np.full((2, MOMENT_STEPS), np.nan) for signal in Signal}
    assert stratum(Window(0.0, STEP_S, NAMES, signals)) == Stratum(0, MIXED, 0)


@given(
    kinds=st.lists(st.integers(0, 2), max_size=60),
    capacity=st.integers(1, 12),
    seed=st.integers(0, 9),
)
@settings(max_examples=60)
def test_reservoir_is_bounded_and_follows_from_its_seed(
    kinds: list[int], capacity: int, seed: int
) -> None:
    reservoir = filled(kinds, capacity=capacity, seed=seed)
    assert len(reservoir) == min(len(kinds), capacity)
    assert len(set(ends(reservoir))) == len(reservoir)
    assert ends(reservoir) == ends(filled(kinds, capacity=capacity, seed=seed))
    assert reservoir.offered == len(kinds)


def test_rare_kinds_keep_their_place_among_many_common_ones() -> None:
    kinds = [0] * 300 + [1] * 3 + [0] * 300 + [2] * 2 + [0] * 300
    kept = Counter(reservoir_kind.mix for reservoir_kind in filled(kinds, capacity=30).counts)
    counts = {kind.mix: count for kind, count in filled(kinds, capacity=30).counts.items()}
    assert set(kept) == {MIXED, "vip", "free"}
    assert (counts["vip"], counts["free"]) == (3, 2)


def test_each_moment_of_the_largest_kind_is_as_likely_to_be_kept() -> None:
    kept: Counter[float] = Counter()
    for seed in range(400):
        kept.update(ends(filled([0] * 40, capacity=10, seed=seed)))
    early, late = (sum(kept[float(at)] for at in span) for span in (range(20), range(20, 40)))
    assert early / (early + late) == pytest.approx(0.5, abs=0.04)


def test_saved_reservoir_goes_on_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    kinds = [0, 1, 0, 2, 0, 0, 1, 2, 0, 0] * 6
    path = tmp_path / "state" / "reservoir.npz"
    filled(kinds[:25], capacity=8).save(path)
    resumed = Reservoir.load(path)
    for number, kind in enumerate(kinds[25:], start=25):
        resumed.offer(moment(float(number), **KINDS[kind]))
    straight = filled(kinds, capacity=8)
    assert ends(resumed) == ends(straight)
    assert resumed.counts == straight.counts
    for one, other in zip(resumed.moments, straight.moments, strict=True):
        for signal in Signal:
            assert np.array_equal(one.signals[signal], other.signals[signal], equal_nan=True)


def test_file_that_holds_no_reservoir_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "reservoir.npz"
    filled([0, 1], capacity=4).save(path)
    whole = path.read_bytes()
    for content in (b"", b"no archive", whole[:-40], whole[:200]):
        path.write_bytes(content)
        with pytest.raises(BadFile, match="reservoir"):
            Reservoir.load(path)


def test_overlapping_histories_are_offered_once(history: Window) -> None:
    reservoir = Reservoir(1000)
    reservoir.offer_all(history.between(0, 100))
    assert reservoir.offered == 100 - MOMENT_STEPS + 1
    reservoir.offer_all(history.between(50, 150))
    assert reservoir.offered == 150 - MOMENT_STEPS + 1
    assert len(set(ends(reservoir))) == reservoir.offered


def test_other_classes_are_unknown_and_gone_ones_left_out() -> None:
    changed = reindexed(moment(5.0, arrivals=(3.0, 4.0)), ("free", "new"))
    assert changed.task_classes == ("free", "new")
    assert (changed.signals[Signal.ARRIVALS_PER_S][0] == 4.0).all()
    assert np.isnan(changed.signals[Signal.ARRIVALS_PER_S][1]).all()


def test_examples_of_moments_are_those_of_their_history(
    history: Window, classes: tuple[TaskClass, ...]
) -> None:
    moments = [
        history.between(stop - MOMENT_STEPS, stop)
        for stop in range(MOMENT_STEPS, history.steps + 1)
    ]
    one_by_one = examples_of_moments(moments, classes)
    at_once = build_examples([history], classes)
    assert one_by_one is not None
    for part in dataclasses.fields(at_once):
        np.testing.assert_array_equal(getattr(one_by_one, part.name), getattr(at_once, part.name))


def test_moments_that_say_nothing_give_no_examples(classes: tuple[TaskClass, ...]) -> None:
    signals = {signal: np.full((2, MOMENT_STEPS), np.nan) for signal in Signal}
    assert examples_of_moments([Window(0.0, STEP_S, NAMES, signals)], classes) is None


@pytest.mark.parametrize("capacity", [0, -1])
def test_reservoir_without_room_is_refused(capacity: int) -> None:
    with pytest.raises(ValueError, match="at least one"):
        Reservoir(capacity)


def test_window_of_another_length_is_no_moment(history: Window) -> None:
    with pytest.raises(ValueError, match="13 steps"):
        Reservoir().offer(history.between(0, 12))
