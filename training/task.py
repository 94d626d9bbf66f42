"""What is minimised, and how.

Shapes: B examples of a batch, C classes, T steps, F features.
"""

from typing import TypeAlias

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from models.lstm import STEERING_ROW, ResidualLstm
from training.online.anchor import Anchor

Batch: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""Features [B, C, T, F], target [B, C], mask [B, C]. The class axis is whole in each example:
the network compares the classes."""


def masked_cross_entropy(logits: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """Mean binary cross-entropy against a fraction, over what the mask leaves: a scalar.

    A proper score: its minimum lies at the true fraction, which a class that violates one time
    in twenty needs as much as one that always does.
    """
    entropy = binary_cross_entropy_with_logits(logits, target, reduction="none")  # [B, C]
    weight = mask.to(entropy.dtype)  # [B, C]
    return (entropy * weight).sum() / weight.sum()


class ViolationTask(pl.LightningModule):
    """One-step forecast of each class's violation fraction.

    Args:
        anchor: what the parameters are pulled toward; None: nothing.
        forecast_only: what also steers stays exactly as it is, and nothing decays.
    """

    def __init__(
        self,
        network: ResidualLstm,
        *,
        learning_rate: float,
        weight_decay: float,
        anchor: Anchor | None = None,
        forecast_only: bool = False,
    ) -> None:
        super().__init__()
        self.network = network
        self._anchor = anchor
        self._forecast_only = forecast_only
        self._learning_rate = learning_rate
        self._weight_decay = 0.0 if forecast_only else weight_decay

    def training_step(self, batch: Batch, _index: int) -> Tensor:
        """Loss of one batch, and what the distance from the anchor adds to it.

        The logged loss is without the latter, to be compared with that of the hold-out.
        """
        loss = self._loss(batch, "train_loss")
        return loss if self._anchor is None else loss + self._anchor.penalty(self.network)

    def validation_step(self, batch: Batch, _index: int) -> Tensor:
        """Loss of one batch of the hold-out."""
        return self._loss(batch, "validation_loss")

    def on_after_backward(self) -> None:
        """A gradient of 0 moves nothing: AdamW's steps are those of the gradients so far."""
        if self._forecast_only:
            emit = self.network.emit
            for parameter in self.network.parameters():
                if parameter.grad is None:
                    continue
                if parameter is emit.weight or parameter is emit.bias:
                    parameter.grad[STEERING_ROW] = 0.0
                else:
                    parameter.grad.zero_()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(
            self.parameters(), lr=self._learning_rate, weight_decay=self._weight_decay
        )

    def _loss(self, batch: Batch, name: str) -> Tensor:
        features, target, mask = batch
        loss = masked_cross_entropy(self.network.logits(features), target, mask)
        # Weighted by what was counted, so that an epoch's mean is the mean over all of it.
        self.log(
            name, loss, on_step=False, on_epoch=True, prog_bar=True, batch_size=int(mask.sum())
        )
        return loss
