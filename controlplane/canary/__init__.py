"""A challenger on a share of the engines, by turns with the champion. Pure.

The same engines run both, block by block in random order, so that what differs between engines
and what changes from hour to hour cancels. After each pair of blocks a sequential test says
whether to go on, to stop for harm, or that the challenger is no worse.
"""

from controlplane.canary.blocks import Arm, Moment, Timetable, choose_engines
from controlplane.canary.contest import Contest, Kind, TrialRecord, contest_for, why_over
from controlplane.canary.counts import BlockCounts, block_loss
from controlplane.canary.sequential import BettingTest
from controlplane.canary.trial import Outcome, Trial, TrialLimits, TrialPolicy
from controlplane.canary.turns import EndedBlock, Turn, Turns

__all__ = [
    "Arm",
    "BettingTest",
    "BlockCounts",
    "Contest",
    "EndedBlock",
    "Kind",
    "Moment",
    "Outcome",
    "Timetable",
    "Trial",
    "TrialLimits",
    "TrialPolicy",
    "TrialRecord",
    "Turn",
    "Turns",
    "block_loss",
    "choose_engines",
    "contest_for",
    "why_over",
]
