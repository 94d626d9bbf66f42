import dataclasses

import numpy as np
import pytest

from models.classes import TaskClass
from models.features import FEATURE_NAMES, encode
from models.window import STEP_S, STEPS, Signal, Window
from training.dataset import build_examples
from training.errors import NotEnoughHistory
from training.targets import violation_targets

Classes = tuple[TaskClass, ...]


def with_signal(history: Window, signal: Signal, row: int, step: int, value: float) -> Window:
    values = history.signals[signal].copy()
    values[row, step] = value
    return dataclasses.replace(history, signals={**history.signals, signal: values})


def test_target_is_the_shrunk_violation_fraction(history: Window) -> None:
    targets = violation_targets(history)
    finished, violated = 3.0 * STEP_S, history.signals[Signal.VIOLATIONS_PER_S] * STEP_S
    np.testing.assert_allclose(targets.ratio, (violated + 0.1) / (finished + 2))
    assert targets.mask.all()


@pytest.mark.parametrize("nothing", [np.nan, 0.0])
def test_step_that_says_nothing_is_masked(history: Window, nothing: float) -> None:
    silent = with_signal(history, Signal.FINISHED_PER_S, 1, 40, nothing)
    assert np.argwhere(~violation_targets(silent).mask).tolist() == [[1, 40]]


def test_starved_class_is_a_target_though_it_finishes_nothing(history: Window) -> None:
    starved = with_signal(history, Signal.FINISHED_PER_S, 0, 40, 0.0)
    starved = with_signal(starved, Signal.VIOLATIONS_PER_S, 0, 40, 0.0)
    starved = with_signal(starved, Signal.WAITING_PAST_SLO, 0, 40, 9.0)
    targets = violation_targets(starved)
    assert targets.mask[0, 40]
    assert targets.ratio[0, 40] == pytest.approx(9.1 / 11)


def test_example_is_a_window_as_it_would_be_served_and_the_step_after_it(
    history: Window, classes: Classes
) -> None:
    examples = build_examples([history], classes)
    assert len(examples) == history.steps - STEPS
    served = encode(history.between(100, 100 + STEPS), classes)
    np.testing.assert_array_equal(examples.features[100], served)
    np.testing.assert_allclose(
        examples.target[100], violation_targets(history).ratio[:, 100 + STEPS], rtol=1e-6
    )


def test_persistence_is_the_last_steps_violation_fraction(
    history: Window, classes: Classes
) -> None:
    examples = build_examples([history], classes)
    np.testing.assert_allclose(examples.persistence[1:], examples.target[:-1], rtol=1e-6)
    assert FEATURE_NAMES[1] == "violation_fraction"


def test_step_that_says_nothing_of_any_class_makes_no_example(
    history: Window, classes: Classes
) -> None:
    silent = with_signal(history, Signal.FINISHED_PER_S, 0, 40, np.nan)
    assert len(build_examples([silent], classes)) == history.steps - STEPS
    silent = with_signal(silent, Signal.FINISHED_PER_S, 1, 40, np.nan)
    examples = build_examples([silent], classes)
    assert len(examples) == history.steps - STEPS - 1
    assert examples.mask.all(), "the gap only shows in the windows that hold it"
    assert np.isfinite(examples.features).all()


def test_hold_out_is_the_newest_part(history: Window, classes: Classes) -> None:
    examples = build_examples([history], classes)
    known, held_out = examples.split(0.25)
    assert (len(known), len(held_out)) == (171, 57)
    np.testing.assert_array_equal(np.concatenate([known.target, held_out.target]), examples.target)


@pytest.mark.parametrize("holdout_ratio", [0.0, 1.0])
def test_neither_part_is_ever_empty(
    history: Window, classes: Classes, holdout_ratio: float
) -> None:
    assert all(build_examples([history], classes).split(holdout_ratio))


def test_short_history_is_refused_with_what_there_is_and_what_is_needed(
    history: Window, classes: Classes
) -> None:
    with pytest.raises(NotEnoughHistory, match=r"150 s .* 18 examples .* 48 .* 300 s") as refused:
        build_examples([history.between(0, 30)], classes)
    assert (refused.value.examples, refused.value.needed) == (18, 48)
    assert len(build_examples([history.between(0, 60)], classes)) == 48


def test_long_idle_history_is_refused(history: Window, classes: Classes) -> None:
    idle = dataclasses.replace(
        history, signals={signal: values * 0 for signal, values in history.signals.items()}
    )
    with pytest.raises(NotEnoughHistory, match="1200 s of history give 0 examples with traffic"):
        build_examples([idle], classes)
