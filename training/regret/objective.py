"""What the network is trained on: the cost of the shares it wants, and what keeps it calm.

Shapes: B lessons, C classes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from models.lstm import ResidualLstm, log_shares
from training.regret.batches import Batch

LEAST_SHARE = 1e-6
"""No floor is lower: its logarithm must be a number."""


@dataclass(frozen=True, slots=True)
class Penalties:
    """What is added to the regret; all in its unit, the loss of one tick's requests.

    Attributes:
        step: per squared log-share that the wanted shares lie from those in force.
        residual: per squared log-odds from the rule: who knows nothing better keeps to it.
        trust: per squared log-share further than ``radius`` from where the cost was fitted.
        floor: per squared log-share below a class's floor.
        violation: of the forecast's cross-entropy.
    """

    step: float = 2e-4
    residual: float = 2e-4
    trust: float = 0.1
    radius: float = 1.4
    floor: float = 0.1
    violation: float = 0.02


def regret(wanted: Tensor, batch: Batch) -> Tensor:
    """Local cost of log-shares [B, C] against those that the policy wanted: [B]."""
    d = _from_centre(wanted, batch)  # [B, C]
    bend = torch.einsum("bi,bij,bj->b", d, batch.curvature, d)
    return (d * batch.gradient).sum(-1) + 0.5 * bend


def objective(network: ResidualLstm, batch: Batch, penalties: Penalties) -> tuple[Tensor, Tensor]:
    """Mean over the batch: what is minimised, and the regret in it."""
    residual, logits = network.heads(batch.features)  # each [B, C]
    wanted = log_shares(batch.features, residual)  # [B, C]
    mean_regret = regret(wanted, batch).mean()
    far = torch.relu(_from_centre(wanted, batch).norm(dim=-1) - penalties.radius)  # [B]
    below = torch.relu(batch.floor.clamp_min(LEAST_SHARE).log() - wanted)  # [B, C]
    total = (
        mean_regret
        + penalties.step * (wanted - batch.in_force).square().mean()
        + penalties.residual * residual.square().mean()
        + penalties.trust * far.square().mean()
        + penalties.floor * below.square().mean()
        + penalties.violation * _forecast_loss(logits, batch)
    )
    return total, mean_regret


def _from_centre(wanted: Tensor, batch: Batch) -> Tensor:
    return wanted - wanted.mean(dim=-1, keepdim=True) - batch.centre


def _forecast_loss(logits: Tensor, batch: Batch) -> Tensor:
    entropy = binary_cross_entropy_with_logits(logits, batch.violation, reduction="none")
    known = batch.violation_known.to(entropy.dtype)  # [B, C]
    return (entropy * known).sum() / known.sum().clamp_min(1.0)
