"""Small corrections are not worth a move; one that was begun is finished.

Legend: C classes.
"""

import numpy as np

from controlplane.guardrails.shares import Shares


def settle(
    shares: Shares, *, previous: Shares, moving: bool, start: float, stop: float
) -> tuple[Shares, bool]:
    """Shares to publish, and whether a move is under way after this tick.

    A move begins when some log-share is off by more than ``start``, and is over after a step
    in which none moved by more than ``stop``. Between the two it depends on the past, which
    is what keeps a target that wavers about a threshold from being followed.

    Args:
        shares: [C] where the box lets them go.
        previous: [C] in force.
        moving: whether a move was under way before it.
        start: in log-share; >= ``stop``.
        stop: in log-share; >= 0.
    """
    off = float(np.abs(np.log(shares / previous)).max())
    if not moving and off <= start:
        return previous, False
    return shares, off > stop
