"""Whether a candidate may take the champion's place. Pure: evidence in, verdicts out."""

from models.verdicts import Verdict
from training.gate.evidence import Comparison, Evidence, Paired
from training.gate.gates import GATES, GateLimits, judge, passed

__all__ = [
    "GATES",
    "Comparison",
    "Evidence",
    "GateLimits",
    "Paired",
    "Verdict",
    "judge",
    "passed",
]
