"""Lessons as tensors: those with equally many classes together.

Shapes: B lessons, C classes, T steps, F features.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.familiarity import FeatureRanges
from training.errors import BadFile
from training.regret.lessons import Lesson


class Batch(NamedTuple):
    """Lessons whose worlds have the same number of classes.

    Attributes:
        features: [B, C, T, F].
        centre: [B, C] of the local costs; likewise
        gradient: [B, C] and
        curvature: [B, C, C].
        in_force: [B, C] log-shares before the decision.
        floor: [B, C] least shares.
        violation: [B, C] in the step that follows.
        violation_known: [B, C].
    """

    features: Tensor
    centre: Tensor
    gradient: Tensor
    curvature: Tensor
    in_force: Tensor
    floor: Tensor
    violation: Tensor
    violation_known: Tensor

    @property
    def lessons(self) -> int:
        """How many, B."""
        return len(self.features)

    def rows(self, chosen: Tensor) -> "Batch":
        """Some of the lessons."""
        return Batch(*(column[chosen] for column in self))


def batch_of(lessons: Sequence[Lesson]) -> Batch:
    """Lessons that have equally many classes."""
    columns = zip(*(_columns(lesson) for lesson in lessons), strict=True)
    return Batch(*(_tensor(np.stack(column)) for column in columns))


def grouped(lessons: Iterable[Lesson]) -> list[Batch]:
    """All lessons, one batch for each number of classes."""
    by_classes: dict[int, list[Lesson]] = defaultdict(list)
    for lesson in lessons:
        by_classes[len(lesson.features)].append(lesson)
    return [batch_of(by_classes[classes]) for classes in sorted(by_classes)]


def ranges_of(groups: Iterable[Batch]) -> FeatureRanges:
    """What windows the lessons are of."""
    rows = [group.features.flatten(0, -2).numpy() for group in groups]  # each [B * C * T, F]
    return FeatureRanges.of(np.concatenate(rows))


def save(groups: Sequence[Batch], path: Path) -> None:
    """Write as NumPy's .npz."""
    arrays = {
        f"{name}.{index}": column.numpy()
        for index, group in enumerate(groups)
        for name, column in group._asdict().items()
    }
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)


def load(path: Path) -> list[Batch]:
    """Read what ``save`` wrote.

    Raises:
        BadFile: it cannot be read, or holds something else.
    """
    try:
        with np.load(path) as arrays:
            count = len(arrays.files) // len(Batch._fields)
            return [
                Batch(*(torch.from_numpy(arrays[f"{name}.{index}"]) for name in Batch._fields))
                for index in range(count)
            ]
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise BadFile(path, f"it holds no lessons: {error}") from error


def shuffled(groups: Sequence[Batch], size: int, generator: torch.Generator) -> Iterator[Batch]:
    """Every lesson once, in batches of at most ``size``, in random order."""
    parts = [
        (group, chosen)
        for group in groups
        for chosen in torch.split(torch.randperm(group.lessons, generator=generator), size)
    ]
    for index in torch.randperm(len(parts), generator=generator).tolist():
        group, chosen = parts[index]
        yield group.rows(chosen)


def _columns(lesson: Lesson) -> tuple[NDArray[Any], ...]:
    cost = lesson.cost
    return (
        lesson.features,
        cost.centre,
        cost.gradient,
        cost.curvature,
        lesson.in_force,
        lesson.floor,
        lesson.violation,
        lesson.violation_known,
    )


def _tensor(values: NDArray[Any]) -> Tensor:
    return torch.from_numpy(values if values.dtype == np.bool_ else values.astype(np.float32))
