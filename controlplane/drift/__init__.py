"""Does the serving model still fit what the fleet does?

Residuals, predicted minus realised violation, go to change detectors, class by class. When a
class's residuals have moved away from where they used to be, the rule plays instead of the
model and a retrain is asked for. Nothing is promoted by itself.

It stands here and not in training because the running control plane asks at every tick, and
imports nothing of training.
"""

from controlplane.drift.monitor import Drift, DriftMonitor, prepare

__all__ = ["Drift", "DriftMonitor", "prepare"]
