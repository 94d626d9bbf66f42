"""The network: a bounded correction to the rule, and a forecast, shared by all classes.

Shapes: C classes, T steps, F features, H LSTM state; ``...`` any leading axes (a training
batch has one, serving none).
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax, logsigmoid

from models.architecture import ARCHITECTURE
from models.features import DESCRIPTOR, FEATURE_NAMES

WEIGHT, RESIDUAL, VIOLATION = range(3)
"""Columns of the network's output."""
STEERING_ROW = 0
"""Of the last layer: it emits s_k, the other one z_k."""


class ResidualLstm(nn.Module):
    """Two-layer LSTM over each class's window, and a head that compares the classes.

    The head sees a class's own last state, its descriptor, and the mean and the maximum of
    all classes' last states, which do not depend on their order: classes come and go without
    retraining. It emits two numbers per class, s_k and z_k:

        residual_k  = bound * tanh(s_k - mean_c s_c)       in log-odds
        weight_k    = sigmoid(logit(rule_k) + residual_k)
        violation_k = sigmoid(z_k)                         expected in the next step

    The correction is its own: what is best to do about a violation is not always to lean
    toward it. The last layer starts at zero: an untrained network's residuals are exactly 0,
    its weights the rule's. A lone class's residual is always 0.
    """

    def __init__(self) -> None:
        super().__init__()
        hidden = ARCHITECTURE.hidden
        self.lstm = nn.LSTM(len(FEATURE_NAMES), hidden, ARCHITECTURE.layers, batch_first=True)
        self.compare = nn.Linear(3 * hidden + len(DESCRIPTOR), ARCHITECTURE.head_hidden)
        self.emit = nn.Linear(ARCHITECTURE.head_hidden, 2)
        nn.init.zeros_(self.emit.weight)
        nn.init.zeros_(self.emit.bias)

    def heads(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """[..., C, T, F] -> residuals and log-odds of a violation, each [..., C]."""
        series = features.flatten(0, -3)  # [... * C, T, F]
        last_state = self.lstm(series)[0][:, -1]  # [... * C, H]
        own = last_state.unflatten(0, features.shape[:-2])  # [..., C, H]
        mean = own.mean(dim=-2, keepdim=True).expand_as(own)  # [..., C, H]
        largest = own.amax(dim=-2, keepdim=True).expand_as(own)  # [..., C, H]
        descriptor = features[..., -1, -len(DESCRIPTOR) :]  # [..., C, D]
        seen = torch.cat([own, mean, largest, descriptor], dim=-1)  # [..., C, 3H + D]
        steering, logits = self.emit(torch.relu(self.compare(seen))).unbind(-1)  # each [..., C]
        centred = steering - steering.mean(dim=-1, keepdim=True)  # [..., C]
        return ARCHITECTURE.bound * torch.tanh(centred), logits

    def logits(self, features: Tensor) -> Tensor:
        """Log-odds of the violation fraction in the next step: [..., C, T, F] -> [..., C]."""
        return self.heads(features)[1]

    def forward(self, features: Tensor) -> Tensor:
        """[C, T, F] -> [C, 3]: weight, residual (log-odds), violation fraction."""
        residual, logits = self.heads(features)  # each [C]
        weight = torch.sigmoid(_rule_logit(features) + residual)  # [C]
        return torch.stack([weight, residual, torch.sigmoid(logits)], dim=-1)  # [C, 3]


def log_shares(features: Tensor, residual: Tensor) -> Tensor:
    """Log-shares under residuals [..., C] in log-odds, of features [..., C, T, F]: [..., C]."""
    return log_softmax(logsigmoid(_rule_logit(features) + residual), dim=-1)


def _rule_logit(features: Tensor) -> Tensor:
    """[..., C, T, F] -> [..., C]."""
    return features[..., -1, FEATURE_NAMES.index("rule_logit")]
