"""What stands between a policy and simulated engines: the control plane's own box."""

from dataclasses import dataclass

import numpy as np

from controlplane.guardrails import Shares, guard


@dataclass(frozen=True, slots=True)
class Guardrails:
    """Steps of log-shares, and floors, all at once.

    Attributes:
        floors: least share of each class; (): there are none, however many classes there are.
    """

    max_log_share_step: float
    floors: tuple[float, ...] = ()

    def __call__(self, wanted: Shares, previous: Shares) -> Shares:
        """Shares in force, [C]."""
        return guard(
            wanted,
            previous=previous,
            floors=np.array(self.floors) if self.floors else np.zeros(len(wanted)),
            max_log_share_step=self.max_log_share_step,
        ).shares
