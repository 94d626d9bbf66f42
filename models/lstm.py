"""The network: a bounded correction to the rule, shared by all classes.

Shapes: C classes, T steps, F features, H LSTM state; ``...`` any leading axes (a training
batch has one, serving none).
"""

import torch
from torch import Tensor, nn

from models.architecture import ARCHITECTURE
from models.features import DESCRIPTOR, FEATURE_NAMES

WEIGHT, RESIDUAL, VIOLATION = range(3)
"""Columns of the network's output."""


class ResidualLstm(nn.Module):
    """Two-layer LSTM over each class's window, and a head that compares the classes.

    The head sees a class's own last state, its descriptor, and the mean and the maximum of
    all classes' last states, which do not depend on their order: classes come and go without
    retraining. It emits one logit ``z_k`` per class, and

        violation_k = sigmoid(z_k)                         expected in the next step
        residual_k  = bound * tanh(z_k - mean_c z_c)       in log-odds
        weight_k    = sigmoid(logit(rule_k) + residual_k)

    The correction favours the classes that the network expects to violate more than the
    average. The last layer starts at zero: an untrained network's residuals are exactly 0, its
    weights the rule's. A lone class's residual is always 0.
    """

    def __init__(self) -> None:
        super().__init__()
        hidden = ARCHITECTURE.hidden
        self.lstm = nn.LSTM(len(FEATURE_NAMES), hidden, ARCHITECTURE.layers, batch_first=True)
        self.compare = nn.Linear(3 * hidden + len(DESCRIPTOR), ARCHITECTURE.head_hidden)
        self.emit = nn.Linear(ARCHITECTURE.head_hidden, 1)
        nn.init.zeros_(self.emit.weight)
        nn.init.zeros_(self.emit.bias)

    def logits(self, features: Tensor) -> Tensor:
        """Log-odds of the violation fraction in the next step: [..., C, T, F] -> [..., C]."""
        series = features.flatten(0, -3)  # [... * C, T, F]
        last_state = self.lstm(series)[0][:, -1]  # [... * C, H]
        own = last_state.unflatten(0, features.shape[:-2])  # [..., C, H]
        mean = own.mean(dim=-2, keepdim=True).expand_as(own)  # [..., C, H]
        largest = own.amax(dim=-2, keepdim=True).expand_as(own)  # [..., C, H]
        descriptor = features[..., -1, -len(DESCRIPTOR) :]  # [..., C, D]
        seen = torch.cat([own, mean, largest, descriptor], dim=-1)  # [..., C, 3H + D]
        logits: Tensor = self.emit(torch.relu(self.compare(seen))).squeeze(-1)  # [..., C]
        return logits

    def forward(self, features: Tensor) -> Tensor:
        """[C, T, F] -> [C, 3]: weight, residual (log-odds), violation fraction."""
        logits = self.logits(features)  # [C]
        centred = logits - logits.mean(dim=-1, keepdim=True)  # [C]
        residual = ARCHITECTURE.bound * torch.tanh(centred)  # [C]
        rule_logit = features[..., -1, FEATURE_NAMES.index("rule_logit")]  # [C]
        weight = torch.sigmoid(rule_logit + residual)  # [C]
        return torch.stack([weight, residual, torch.sigmoid(logits)], dim=-1)  # [C, 3]
