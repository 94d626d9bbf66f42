from dataclasses import replace

import numpy as np
import pytest

from controlplane.guardrails import Shares, default_shares
from controlplane.modes import MissLimits, Standing
from controlplane.restart import Lineage, StoredHead, continued, first_standing
from controlplane.snapshot import ClassPolicy, Discipline, Mode, Snapshot
from models.classes import TaskClass

NOW_S = 1_700_000_000.0
LIMITS = MissLimits(hold_after_missed=2, static_after_missed=6)


@pytest.fixture
def head(task_classes: tuple[TaskClass, ...]) -> StoredHead:
    classes = tuple(
        ClassPolicy(task_class, weight, 0.5)
        for task_class, weight in zip(task_classes, (0.6, 0.4), strict=True)
    )
    snapshot = Snapshot(41, 1000, NOW_S, 30.0, Mode.LEARNED, "champion 3", Discipline.APQ, classes)
    return StoredHead(snapshot, clean_stop=False)


def test_first_start_takes_its_epoch_from_the_clock() -> None:
    assert continued(None, now_unix_s=NOW_S) == Lineage(int(NOW_S), 0)


def test_clean_stop_continues_with_the_next_version(head: StoredHead) -> None:
    clean = replace(head, clean_stop=True)
    lineage = continued(clean, now_unix_s=NOW_S + 1000)
    assert lineage == Lineage(int(NOW_S) + 1000, 41)


def test_after_a_crash_no_version_that_may_have_gone_out_is_used_again(head: StoredHead) -> None:
    # In 11.5 s with a store that refused all writes, no tick being shorter than 1 s, and each
    # with a snapshot for canaries besides.
    assert continued(head, now_unix_s=NOW_S + 11.5).last_version == 41 + 24


def test_clock_that_stepped_back_still_gives_a_higher_epoch_and_version(head: StoredHead) -> None:
    ahead = StoredHead(replace(head.snapshot, epoch=int(NOW_S) + 3600), clean_stop=False)
    lineage = continued(ahead, now_unix_s=NOW_S - 3600)
    assert lineage == Lineage(int(NOW_S) + 3601, 41)


def _first(
    head: StoredHead | None, classes: tuple[TaskClass, ...], age_s: float
) -> tuple[Standing, Shares]:
    return first_standing(head, classes, LIMITS, now_unix_s=NOW_S + age_s, tick_s=5.0)


def test_quick_restart_holds_the_weights(
    head: StoredHead, task_classes: tuple[TaskClass, ...]
) -> None:
    standing, shares = _first(head, task_classes, 11.0)
    assert (standing.mode, standing.missed_windows) == (Mode.HOLD, 2)
    assert "11 s" in standing.reason
    assert np.array_equal(shares, [0.6, 0.4])


@pytest.mark.parametrize("case", ["new", "old", "static", "other class", "below floor"])
def test_weights_that_dont_fit_are_not_held(
    head: StoredHead, task_classes: tuple[TaskClass, ...], case: str
) -> None:
    classes, age_s, stored = task_classes, 1.0, head
    if case == "new":
        stored = None
    elif case == "old":
        age_s = 30.0
    elif case == "static":
        stored = replace(head, snapshot=replace(head.snapshot, mode=Mode.STATIC))
    elif case == "other class":
        classes = (task_classes[0], replace(task_classes[1], name="other"))
    else:
        classes = (task_classes[0], replace(task_classes[1], floor=0.5))
    standing, shares = _first(stored, classes, age_s)
    assert standing.mode is Mode.STATIC
    assert not standing.can_hold
    assert np.array_equal(shares, default_shares(classes))
