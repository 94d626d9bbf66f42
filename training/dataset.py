"""Examples out of a long window: 12 steps in, the violation fraction of the 13th out.

Shapes: N examples, C classes, T steps, F features.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.classes import TaskClass
from models.features import FEATURE_NAMES, encode
from models.window import STEP_S, STEPS, Window
from training.errors import NotEnoughHistory
from training.targets import violation_targets

MIN_EXAMPLES = 48
"""Four minutes. Fewer leave a hold-out of a handful, whose loss says nothing."""

_LAST_VIOLATION = FEATURE_NAMES.index("violation_fraction")


@dataclass(frozen=True, slots=True)
class Examples:
    """Examples in the order of time.

    Attributes:
        features: [N, C, T, F] as the network sees them when it serves.
        target: [N, C] violation fraction in the step that follows.
        mask: [N, C] whether that step says anything of the class.
    """

    features: NDArray[np.float32]
    target: NDArray[np.float32]
    mask: NDArray[np.bool_]

    def __len__(self) -> int:
        """Number of examples N."""
        return len(self.features)

    @property
    def persistence(self) -> NDArray[np.float32]:
        """The forecast that all stays as it was in the window's last step: [N, C]."""
        return self.features[:, :, -1, _LAST_VIOLATION]

    def split(self, holdout_ratio: float) -> tuple["Examples", "Examples"]:
        """The older part and the newest ``holdout_ratio``, at least one example each.

        By time, not at random: neighbouring examples share 11 of their 12 steps.
        """
        held_out = min(max(1, round(len(self) * holdout_ratio)), len(self) - 1)
        cut = len(self) - held_out
        return self._part(slice(None, cut)), self._part(slice(cut, None))

    def _part(self, rows: slice) -> "Examples":
        return Examples(self.features[rows], self.target[rows], self.mask[rows])


def build_examples(
    stretches: Sequence[Window], classes: Sequence[TaskClass], *, min_examples: int = MIN_EXAMPLES
) -> Examples:
    """Slide the network's window over each stretch of history, one step at a time.

    Examples whose next step says nothing of any class are left out.

    Raises:
        NotEnoughHistory: fewer than ``min_examples`` remain.
        ValueError: history and classes do not fit each other or the schema.
    """
    parts = [part for one in stretches if (part := _examples(one, classes)) is not None]
    found = sum(map(len, parts))
    if found < max(1, min_examples):
        raise NotEnoughHistory(
            examples=found,
            needed=min_examples,
            history_s=sum(one.steps * one.step_s for one in stretches),
            needed_s=(STEPS + min_examples) * STEP_S,
        )
    return joined(parts)


def joined(parts: Sequence[Examples]) -> Examples:
    """All of them, one after the other."""
    return Examples(
        features=np.concatenate([part.features for part in parts]),
        target=np.concatenate([part.target for part in parts]),
        mask=np.concatenate([part.mask for part in parts]),
    )


def _examples(stretch: Window, classes: Sequence[TaskClass]) -> Examples | None:
    """Of one stretch; None: it gives none."""
    targets = violation_targets(stretch)
    useful = [step for step in range(STEPS, stretch.steps) if targets.mask[:, step].any()]
    if not useful:
        return None
    return Examples(
        features=np.stack(
            [encode(stretch.between(step - STEPS, step), classes) for step in useful]
        ),
        target=targets.ratio[:, useful].T.astype(np.float32),
        mask=targets.mask[:, useful].T,
    )


def examples_of_moments(moments: Sequence[Window], classes: Sequence[TaskClass]) -> Examples | None:
    """Of windows of one step more than the network reads, each by itself.

    None: the last step of none of them says anything of any class.

    Raises:
        ValueError: a window and the classes do not fit each other or the schema.
    """
    useful = []
    for moment in moments:
        targets = violation_targets(moment)
        if targets.mask[:, -1].any():
            useful.append((moment, targets.ratio[:, -1], targets.mask[:, -1]))
    if not useful:
        return None
    return Examples(
        features=np.stack([encode(moment.between(0, STEPS), classes) for moment, _, _ in useful]),
        target=np.stack([ratio for _, ratio, _ in useful]).astype(np.float32),
        mask=np.stack([mask for _, _, mask in useful]),
    )
