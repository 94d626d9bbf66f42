"""Finite numbers, steps and floors, all at once.

Legend: C classes. All arrays are [C] in configured order.

The wanted weights r become shares s that sum to 1 and stay in a box:

    lo_k = max(floor_k, previous_k * exp(-step))
    hi_k = previous_k * exp(+step)
    s_k  = clip(c * r_k, lo_k, hi_k),  with the one c for which sum(s) = 1

so that no class falls below its floor, no log-share moves by more than `step`
in one tick, and the ratios between classes inside the box are the wanted ones.
sum(s) grows with c, and previous shares that sum to 1 and keep their floors are
themselves in the box; hence c exists.
"""

from dataclasses import dataclass

import numpy as np

from controlplane.guardrails.rails import Fired, Guardrail, Mask, fired
from controlplane.guardrails.shares import Shares, fill, spread


@dataclass(frozen=True, slots=True)
class Guarded:
    """Shares fit to publish, and per class the guardrails that fired."""

    shares: Shares
    fired: Fired


@dataclass(frozen=True, slots=True)
class Boxed:
    """Shares inside the box, and which of its sides hold them: [C] each."""

    shares: Shares
    stepped: Mask
    floored: Mask


def guard(
    wanted: Shares, *, previous: Shares, floors: Shares, max_log_share_step: float
) -> Guarded:
    """Bring wanted weights into the box.

    Args:
        wanted: [C] weights on any scale; may hold anything, NaN included.
        previous: [C] shares in force; sum to 1, each at least its floor.
        floors: [C] least shares; sum below 1.
        max_log_share_step: how far a log-share may move; > 0.
    """
    usable = finite(wanted)
    boxed = into_box(
        kept(wanted, usable, previous), previous=previous, floors=floors, step=max_log_share_step
    )
    conditions = {
        Guardrail.FINITE: ~usable,
        Guardrail.STEP: boxed.stepped,
        Guardrail.FLOOR: boxed.floored,
    }
    return Guarded(boxed.shares, fired(conditions))


def finite(wanted: Shares) -> Mask:
    """Where a wanted weight is a usable number: [C]."""
    usable: Mask = np.isfinite(wanted) & (wanted > 0)
    return usable


def kept(wanted: Shares, usable: Mask, previous: Shares) -> Shares:
    """Wanted shares [C]; the unusable keep theirs, the others divide the rest."""
    target = previous.copy()
    if usable.any():
        target[usable] = spread(wanted[usable]) * previous[usable].sum()
    return target


def into_box(target: Shares, *, previous: Shares, floors: Shares, step: float) -> Boxed:
    """Target shares [C] inside the box around the previous ones."""
    step_low = previous * np.exp(-step)
    high = np.minimum(previous * np.exp(step), 1.0)
    shares = fill(target, np.maximum(floors, step_low), high)
    return Boxed(
        shares,
        stepped=((target < step_low) & (step_low > floors)) | (target > high),
        floored=(target < floors) & (step_low <= floors),
    )
