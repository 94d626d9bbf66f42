"""Going on from the champion: slowly, near to it, and with the past in every batch."""

from collections.abc import Sequence
from dataclasses import replace

from models.bundle import Bundle
from models.classes import TaskClass
from models.window import Window
from training.dataset import examples_of_moments
from training.fit import FitOptions, WarmStart
from training.online.reservoir import reindexed

ANCHOR_STRENGTH = 0.01
"""A parameter's step of 0.1 costs as much as 5e-5 of cross-entropy: one that many windows ask
for is free, one that few ask for is not."""

SLOWER = 0.1
"""Learning rate, of that of a fresh fit."""


def warm_start(
    champion: Bundle | None, moments: Sequence[Window], classes: Sequence[TaskClass]
) -> WarmStart | None:
    """What a fine-tuning starts from; None: no champion has learned anything yet.

    Recorded metrics say what came, not what other weights would have done: of them only the
    forecast is learned, and the champion steers on as it did.

    Args:
        champion: what serves.
        moments: of earlier times, that the reservoir kept.
        classes: of today.
    """
    if champion is None or not champion.provenance.trained:
        return None
    names = tuple(task_class.name for task_class in classes)
    kept = [reindexed(moment, names) for moment in moments]
    return WarmStart(
        champion.network,
        ANCHOR_STRENGTH,
        examples_of_moments(kept, classes),
        champion=champion.network,
        forecast_only=True,
    )


def slowed(options: FitOptions) -> FitOptions:
    """The options of a fresh fit, for a fine-tuning: the anchor takes the decay's place."""
    return replace(
        options,
        learning_rate=options.learning_rate * SLOWER,
        weight_decay=0.0,
        max_epochs=min(options.max_epochs, 30),
        patience_epochs=min(options.patience_epochs, 8),
    )
