"""Pictures of a retraining, as PNG files for MLflow. Drawn without a display.

Shapes: C classes, N examples or instants.
"""

import io
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from training.record.results import RegimeLosses

BINS = 10
_SIZE_INCHES = (8.0, 4.5)


def loss_curves(epochs: Sequence[Mapping[str, float]], references: Mapping[str, float]) -> bytes:
    """Losses of each epoch, and as lines those of forecasts that do not learn."""
    figure, axes = _figure("Loss by epoch", x="epoch", y="cross-entropy")
    for name in sorted({name for epoch in epochs for name in epoch}):
        axes.plot(range(len(epochs)), [epoch.get(name, np.nan) for epoch in epochs], label=name)
    for number, (name, loss) in enumerate(references.items()):
        axes.axhline(loss, linestyle="--", color=f"C{number + 3}", label=name)
    axes.legend()
    return _png(figure)


def weight_map(
    shares: NDArray[np.float64], task_classes: Sequence[str], *, start_s: float, step_s: float
) -> bytes:
    """Shares over time as a heat map, on a logarithmic scale.

    Args:
        shares: [C, N].
        task_classes: [C] names.
        start_s: of the first instant, relative to the end of the history.
        step_s: from one to the next.
    """
    figure, axes = _figure("Weights over time", x="seconds before the end", y="")
    image = axes.imshow(
        np.log10(shares),
        aspect="auto",
        interpolation="nearest",
        extent=(start_s, start_s + shares.shape[1] * step_s, len(task_classes) - 0.5, -0.5),
    )
    axes.set_yticks(range(len(task_classes)), labels=list(task_classes))
    figure.colorbar(image, ax=axes, label="log10 of the share")
    return _png(figure)


def reliability(predicted: NDArray[np.float64], realised: NDArray[np.float64]) -> bytes:
    """Realised violation fraction [N] by predicted one [N], in bins of equal width."""
    figure, axes = _figure(
        "Reliability on the hold-out", x="predicted violation fraction", y="realised"
    )
    points = reliability_points(predicted, realised)
    axes.plot([0, 1], [0, 1], linestyle="--", color="grey", label="perfect")
    if points:
        means, outcomes, counts = np.array(points).T
        axes.scatter(means, outcomes, s=20 + 180 * counts / counts.max(), label="bin, by its size")
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.legend()
    return _png(figure)


def reliability_points(
    predicted: NDArray[np.float64], realised: NDArray[np.float64]
) -> list[tuple[float, float, int]]:
    """Mean prediction, mean outcome and count of each bin that is not empty."""
    bins = np.minimum((predicted * BINS).astype(int), BINS - 1)  # [N]
    return [
        (float(predicted[bins == one].mean()), float(realised[bins == one].mean()), int(count))
        for one, count in enumerate(np.bincount(bins, minlength=BINS))
        if count > 0
    ]


def calibration_error(predicted: NDArray[np.float64], realised: NDArray[np.float64]) -> float:
    """Mean distance of the bins' outcomes from their predictions, weighted by their counts.

    M. P. Naeini, G. F. Cooper and M. Hauskrecht, "Obtaining well calibrated probabilities using
    Bayesian binning", AAAI 2015.
    """
    points = reliability_points(predicted, realised)
    total = sum(count for _, _, count in points)
    return sum(abs(mean - outcome) * count for mean, outcome, count in points) / total


def gap_closed(regimes: Sequence[RegimeLosses]) -> bytes | None:
    """A bar per regime; None: no gap is known."""
    ratios = {one.regime: one.gap_closed_ratio for one in regimes}
    known = {regime: ratio for regime, ratio in ratios.items() if ratio is not None}
    if not known:
        return None
    figure, axes = _figure("Gap from the best static weights to the oracle", x="part closed", y="")
    axes.barh(list(known), list(known.values()))
    axes.axvline(0, color="black", linewidth=1)
    axes.axvline(1, color="grey", linestyle="--")
    return _png(figure)


def _figure(title: str, *, x: str, y: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set(title=title, xlabel=x, ylabel=y)
    return figure, axes


def _png(figure: Figure) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=100)
    return content.getvalue()
