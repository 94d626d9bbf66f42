"""How much of a say the model has.

Legend: C classes.
"""

import numpy as np

from controlplane.guardrails.shares import Shares


def trust_in(unfamiliarity: Shares, *, within: float, beyond: float) -> float:
    """From 1, where all is as in training, down to 0.

    The network compares the classes with each other, so one strange class makes all its
    outputs suspect: the strangest decides.

    Args:
        unfamiliarity: [C] how far outside what was learned from, in widths of its range.
        within: up to here the model is trusted fully.
        beyond: from here on not at all; > ``within``.
    """
    strangest = float(np.max(unfamiliarity, initial=0.0))
    return float(np.clip((beyond - strangest) / (beyond - within), 0.0, 1.0))


def blended(wanted: Shares, rule: Shares, trust: float) -> Shares:
    """``rule^(1 - trust) * wanted^trust``, [C] on any scale: a straight line in log-shares.

    What is unusable stays so. Exact at both ends.
    """
    if trust >= 1.0:
        return wanted
    with np.errstate(divide="ignore", invalid="ignore"):  # the unusable give NaN or infinity
        logs = (1.0 - trust) * np.log(rule) + trust * np.log(wanted)
        mixed: Shares = np.exp(logs - np.max(logs[np.isfinite(logs)], initial=0.0))
    usable = np.isfinite(wanted) & (wanted > 0)
    return np.where(usable, rule if trust <= 0.0 else mixed, np.nan)
