"""Half of each batch is recent, half is of the reservoir."""

import itertools
import math
from collections.abc import Iterator

import torch
from torch.utils.data import Sampler


class HalfAndHalf(Sampler[list[int]]):
    """Batches of indices into the recent examples followed by the kept ones.

    An epoch sees each recent example once. The kept ones come in turn, in a new order each time
    round, so that within a round none comes twice. Draws from torch's global generator.

    Args:
        recent: how many recent examples there are, at least one.
        kept: how many of the reservoir, at least one.
    """

    def __init__(self, recent: int, kept: int, batch_size: int) -> None:
        self._recent = recent
        self._kept = kept
        self._half = max(1, batch_size // 2)

    def __len__(self) -> int:
        """Batches of an epoch."""
        return math.ceil(self._recent / self._half)

    def __iter__(self) -> Iterator[list[int]]:
        kept = self._kept_for_ever()
        order: list[int] = torch.randperm(self._recent).tolist()
        for first in range(0, self._recent, self._half):
            recent = order[first : first + self._half]
            yield [*recent, *itertools.islice(kept, len(recent))]

    def _kept_for_ever(self) -> Iterator[int]:
        while True:
            for index in torch.randperm(self._kept).tolist():
                yield self._recent + index
