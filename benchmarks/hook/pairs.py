"""Two ways to do the same, timed in turn: medians, their ratio, and how sure it is."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Seconds = NDArray[np.float64]

_BLOCK_PAIRS = 20
"""Most pairs that are drawn together: what disturbs a machine lasts longer than one pair."""

_LEAST_BLOCKS = 20

_RESAMPLES = 1000
_CONFIDENCE = (2.5, 97.5)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Medians of both sides, the plugin's over stock's, and its 95% interval."""

    stock_us: float
    plugin_us: float
    ratio: float
    ratio_ci: tuple[float, float]


def take_turns(
    stock: Callable[[], float], plugin: Callable[[], float], pairs: int
) -> tuple[Seconds, Seconds]:
    """Call both ``pairs`` times, alternating who comes first; they return seconds.

    Args:
        stock: does one thing the stock way.
        plugin: does the same thing the plugin's way.
        pairs: how often, N.

    Returns:
        Seconds [N] of either side.
    """
    stock_s, plugin_s = np.empty(pairs), np.empty(pairs)  # [N], [N]
    for i in range(pairs):
        if i % 2:
            plugin_s[i] = plugin()
            stock_s[i] = stock()
        else:
            stock_s[i] = stock()
            plugin_s[i] = plugin()
    return stock_s, plugin_s


def compare(stock_s: Seconds, plugin_s: Seconds, *, seed: int) -> Comparison:
    """Ratio of medians, with a percentile interval of the block bootstrap.

    Blocks of neighbouring pairs are drawn with replacement (Künsch 1989, "The jackknife and
    the bootstrap for general stationary observations"), as a disturbance outlasts a pair.

    Args:
        stock_s: seconds [N].
        plugin_s: seconds [N], the same pairs.
        seed: of the resampling.
    """
    rng = np.random.default_rng(seed)
    pairs = np.stack([stock_s, plugin_s])  # [2, N]
    blocks = _blocks(len(stock_s))
    draws = rng.integers(len(blocks), size=(_RESAMPLES, len(blocks)))
    ratios = [_ratio(pairs[:, np.concatenate([blocks[i] for i in draw])]) for draw in draws]
    low, high = np.percentile(ratios, _CONFIDENCE)
    return Comparison(
        stock_us=float(np.median(stock_s)) * 1e6,
        plugin_us=float(np.median(plugin_s)) * 1e6,
        ratio=_ratio(pairs),
        ratio_ci=(float(low), float(high)),
    )


def _blocks(pairs: int) -> list[NDArray[np.intp]]:
    """Which pairs are drawn together."""
    block_pairs = min(_BLOCK_PAIRS, max(1, pairs // _LEAST_BLOCKS))
    return np.array_split(np.arange(pairs), pairs // block_pairs)


def _ratio(pairs: NDArray[np.float64]) -> float:
    stock_s, plugin_s = np.median(pairs, axis=1)  # [2]
    return float(plugin_s / stock_s)
