"""Fit the network to lessons, on the CPU; the same seed and lessons, the same network."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field

import torch

from models.lstm import ResidualLstm
from training.errors import FitDiverged
from training.online.anchor import Anchor
from training.regret.batches import Batch, shuffled
from training.regret.objective import Penalties, objective


@dataclass(frozen=True, slots=True)
class LearnOptions:
    """How to fit.

    Attributes:
        epochs: passes over the lessons, at most.
        patience: passes without a better hold-out before it stops.
        seed: of the order of lessons.
    """

    epochs: int = 60
    patience: int = 12
    batch_size: int = 64
    learning_rate: float = 2e-3
    weight_decay: float = 1e-3
    gradient_norm: float = 1.0
    seed: int = 0
    penalties: Penalties = field(default_factory=Penalties)


@dataclass(frozen=True, slots=True, eq=False)
class Learned:
    """What a fit gave.

    Attributes:
        network: of the epoch that was best on the hold-out.
        regret: of it on the hold-out, against the policy that was examined; negative is better.
        epochs: ``train_objective``, ``holdout_objective`` and ``holdout_regret`` of each.
    """

    network: ResidualLstm
    regret: float
    epochs: tuple[dict[str, float], ...]


def learn(
    network: ResidualLstm,
    lessons: Sequence[Batch],
    held_out: Sequence[Batch],
    options: LearnOptions,
    *,
    anchor: Anchor | None = None,
) -> Learned:
    """Fit a copy of the network.

    Args:
        network: to begin with.
        lessons: to learn from.
        held_out: to choose the epoch by.
        options: how.
        anchor: what the parameters are pulled toward; None: nothing.

    Raises:
        FitDiverged: the objective on the hold-out was no number in any epoch.
        ValueError: there are no lessons, or none are held out.
    """
    if not (lessons and held_out):
        raise ValueError("there must be lessons, and others that are held out")
    network = deepcopy(network).train()
    generator = torch.Generator().manual_seed(options.seed)
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=options.learning_rate, weight_decay=options.weight_decay
    )
    best, best_epoch, best_regret = None, 0, float("inf")
    least = float("inf")
    epochs: list[dict[str, float]] = []
    while len(epochs) < options.epochs and len(epochs) - best_epoch < options.patience:
        trained = _epoch(network, lessons, optimizer, options, generator, anchor=anchor)
        scored, own_regret = score(network, held_out, options.penalties)
        epochs.append(
            {
                "train_objective": trained,
                "holdout_objective": scored,
                "holdout_regret": own_regret,
            }
        )
        if scored < least:
            least, best_epoch, best_regret = scored, len(epochs), own_regret
            best = deepcopy(network.state_dict())
    if best is None:
        raise FitDiverged(f"the objective was no number in any of {len(epochs)} epochs")
    network.load_state_dict(best)
    return Learned(network.eval(), best_regret, tuple(epochs))


def score(
    network: ResidualLstm, groups: Sequence[Batch], penalties: Penalties
) -> tuple[float, float]:
    """Mean objective and mean regret over all lessons."""
    count = sum(group.lessons for group in groups)
    with torch.inference_mode():
        parts = [(group.lessons, *objective(network, group, penalties)) for group in groups]
    return (
        sum(size * float(total) for size, total, _ in parts) / count,
        sum(size * float(own_regret) for size, _, own_regret in parts) / count,
    )


def _epoch(
    network: ResidualLstm,
    groups: Sequence[Batch],
    optimizer: torch.optim.Optimizer,
    options: LearnOptions,
    generator: torch.Generator,
    *,
    anchor: Anchor | None,
) -> float:
    """One pass; the mean objective of its batches, without the anchor's part."""
    total, count = 0.0, 0
    for batch in shuffled(groups, options.batch_size, generator):
        loss, _ = objective(network, batch, options.penalties)
        optimizer.zero_grad()
        pulled = loss if anchor is None else loss + anchor.penalty(network)
        torch.autograd.backward(pulled)
        torch.nn.utils.clip_grad_norm_(network.parameters(), options.gradient_norm)
        optimizer.step()
        total += float(loss.detach()) * batch.lessons
        count += batch.lessons
    return total / count
