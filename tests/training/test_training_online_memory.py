from pathlib import Path

import numpy as np
import pytest

from models.window import Window
from training.errors import BadFile, StateUnavailable
from training.online.memory import CALIBRATION_FILE, READING_FILE, recall
from training.online.recalibration import Reading, recalibrated
from training.simulator.calibration import REFERENCE_ENGINE
from training.simulator.step_fit import StepSums

SLOWER = 2.0


def sums(steps: int, *, factor: float, seed: int) -> StepSums:
    """What an engine reports whose steps take ``factor`` times the reference's time."""
    rng = np.random.default_rng(seed)
    loads = np.column_stack(
        (
            np.ones(steps),
            rng.integers(0, 256, steps),
            rng.integers(0, 32, steps),
            rng.integers(0, 50_000, steps),
        )
    )
    elapsed_s = loads @ (factor * REFERENCE_ENGINE.coefficients[:4])
    relative = loads / elapsed_s[:, None]
    return StepSums(float(steps), relative.T @ relative, relative.sum(axis=0))


def test_calibration_follows_the_steps_between_two_readings() -> None:
    old = sums(5000, factor=1.0, seed=1)
    new = old + sums(5000, factor=SLOWER, seed=2)
    found = recalibrated(REFERENCE_ENGINE, Reading(0.0, {"a": old}), Reading(3600.0, {"a": new}))
    ratio = found.coefficients[:4] / REFERENCE_ENGINE.coefficients[:4]
    assert ratio == pytest.approx(np.full(4, SLOWER), rel=0.05)
    assert found.hash != REFERENCE_ENGINE.hash


def test_engine_that_was_not_there_before_says_nothing_yet() -> None:
    now = Reading(3600.0, {"new": sums(5000, factor=SLOWER, seed=1)})
    assert recalibrated(REFERENCE_ENGINE, Reading(0.0, {}), now) is REFERENCE_ENGINE


def test_memory_slides_from_one_retraining_to_the_next(tmp_path: Path, history: Window) -> None:
    first = recall(tmp_path, reading=Reading(0.0, {"a": sums(5000, factor=1.0, seed=1)}))
    assert first.calibration is REFERENCE_ENGINE
    assert len(first.reservoir) == 0
    first.keep(history)

    total = sums(5000, factor=1.0, seed=1) + sums(5000, factor=SLOWER, seed=2)
    second = recall(tmp_path, reading=Reading(3600.0, {"a": total}))
    assert second.calibration.hash != REFERENCE_ENGINE.hash
    assert len(second.reservoir) == history.steps - 12
    second.keep(history)

    third = recall(tmp_path)
    assert third.calibration.hash == second.calibration.hash
    assert third.reservoir.offered == second.reservoir.offered


def test_memory_that_is_not_kept_changes_nothing(tmp_path: Path) -> None:
    recall(tmp_path, reading=Reading(0.0, {"a": sums(100, factor=1.0, seed=1)}))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content", ["", "{}", '{"unix_s": 1, "engines": {"a": {"steps": 1}}}', "[]"]
)
def test_reading_that_is_none_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / READING_FILE).write_text(content)
    with pytest.raises(BadFile, match="no reading"):
        recall(tmp_path, reading=Reading(0.0, {}))


def test_calibration_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / CALIBRATION_FILE).write_text("{}")
    with pytest.raises(BadFile):
        recall(tmp_path)


def test_folder_that_cannot_be_written_is_said_so(tmp_path: Path, history: Window) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StateUnavailable, match="file"):
        recall(tmp_path / "file" / "state").keep(history)
