"""A pull toward the champion's parameters."""

import torch
from torch import Tensor, nn


class Anchor:
    """Half the squared distance from a network's parameters, times a strength: L2-SP.

        strength / 2 * ||w - w_champion||^2

    Weight decay pulls toward zero, and so away from what was learned; this pulls back to it.

    X. Li, Y. Grandvalet and F. Davoine, "Explicit inductive bias for transfer learning with
    convolutional networks", ICML 2018, equation (2).
    """

    def __init__(self, network: nn.Module, strength: float) -> None:
        if not strength >= 0:
            raise ValueError(f"the strength of an anchor is at least 0, not {strength}")
        self._origin = [parameter.detach().clone() for parameter in network.parameters()]
        self._strength = strength

    def penalty(self, network: nn.Module) -> Tensor:
        """A scalar; differentiable in the network's parameters."""
        distances = [
            (parameter - origin).square().sum()
            for parameter, origin in zip(network.parameters(), self._origin, strict=True)
        ]
        return self._strength / 2 * torch.stack(distances).sum()
