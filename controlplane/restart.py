"""Where a process takes up what the one before it left in the store. Pure.

Versions. Identity is (epoch, version). A snapshot is written to the store before
it goes out. When the store fails it goes out all the same, because engines that
hear nothing turn neutral; the store then does not know the highest version. A
process that follows one that did not stop in order therefore skips as many
versions as that one can have published since its last stored snapshot.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.clock import MIN_TICK_S
from controlplane.guardrails import Shares, default_shares, floor_shares
from controlplane.modes import MissLimits, Standing
from controlplane.snapshot import Mode, Snapshot
from models.classes import TaskClass

VERSIONS_PER_TICK = 2
"""At most: with a canary, a tick publishes two."""


@dataclass(frozen=True, slots=True)
class StoredHead:
    """The newest snapshot in the store.

    Attributes:
        clean_stop: the process that wrote it stopped in order, so no higher
            version has ever been handed out.
    """

    snapshot: Snapshot
    clean_stop: bool


@dataclass(frozen=True, slots=True)
class Lineage:
    """Who this process is.

    Attributes:
        last_version: the highest that may ever have been handed out.
    """

    epoch: int
    last_version: int


def continued(head: StoredHead | None, *, now_unix_s: float) -> Lineage:
    """The lineage of a process that starts on a store with ``head``.

    The epoch follows the clock, so that of two stores the younger process leads,
    and the store, so that a clock that steps back does no harm.
    """
    if head is None:
        return Lineage(epoch=int(now_unix_s), last_version=0)
    last = head.snapshot
    silent_s = 0.0 if head.clean_stop else max(0.0, now_unix_s - last.issued_at_unix_s)
    return Lineage(
        epoch=max(last.epoch + 1, int(now_unix_s)),
        last_version=last.version + VERSIONS_PER_TICK * math.ceil(silent_s / MIN_TICK_S),
    )


def first_standing(
    head: StoredHead | None,
    task_classes: Sequence[TaskClass],
    limits: MissLimits,
    *,
    now_unix_s: float,
    tick_s: float,
) -> tuple[Standing, Shares]:
    """Mode and shares [C] of the first snapshot.

    Weights that are still fresh, and still fit the configured classes, are held:
    to the engines a quick restart is but a missed window or two.
    """
    defaults = default_shares(task_classes)
    if head is None:
        return Standing(Mode.STATIC, "first start, no window yet"), defaults
    age_s = max(0.0, now_unix_s - head.snapshot.issued_at_unix_s)
    missed = math.floor(age_s / tick_s)
    shares = _usable_shares(head.snapshot, task_classes)
    if shares is None:
        return Standing(Mode.STATIC, "restarted with other classes, no window yet"), defaults
    if missed >= limits.static_after_missed or head.snapshot.mode is Mode.STATIC:
        return Standing(Mode.STATIC, f"restarted after {age_s:.0f} s, no window yet"), defaults
    reason = f"restarted after {age_s:.0f} s, no window yet"
    return Standing(Mode.HOLD, reason, missed, can_hold=True), shares


def _usable_shares(snapshot: Snapshot, task_classes: Sequence[TaskClass]) -> Shares | None:
    """The snapshot's shares [C], if they are shares of these classes and keep their floors."""
    if [policy.task_class.name for policy in snapshot.classes] != [
        cls.name for cls in task_classes
    ]:
        return None
    shares = np.array([policy.weight for policy in snapshot.classes])
    keeps_floors = bool((shares >= floor_shares(task_classes)).all())
    return shares if keeps_floors and np.isclose(shares.sum(), 1.0) else None
