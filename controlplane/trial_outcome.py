"""What the outcome of a contest calls for in the registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.canary import Contest, Kind, Outcome, TrialRecord
from models.versions import RunRecord

if TYPE_CHECKING:  # importing the registry imports MLflow, which takes seconds
    from models.registry import Registry

ACTOR = "canary"
"""Who promotes, rolls back and takes notes, in the audit trail."""


def carry_out(registry: Registry, record: TrialRecord) -> str:
    """Do it, and say what was done. Blocking; doing it twice changes nothing.

    Raises:
        RegistryUnavailable: it is away: nothing, or not all, was done.
        ModelError: it can't be done.
    """
    contest = record.contest
    if contest.kind is Kind.TRIAL:
        registry.record_trial(contest.challenger, outcome=record.outcome, reason=record.reason)
        done = _judged(registry, contest, record)
    else:
        done = _watched(registry, contest, record)
    registry.attach(contest.challenger, _child(record))
    return done


def _judged(registry: Registry, contest: Contest, record: TrialRecord) -> str:
    champion = registry.champion_version()
    if record.outcome is not Outcome.NO_WORSE:
        return f"version {champion} stays"
    if champion == contest.challenger:
        return "it was promoted already"
    if champion != contest.champion:
        return f"version {champion} is champion now, and stays"
    registry.promote(contest.challenger, actor=ACTOR, reason=f"canary: {record.reason}")
    return "promoted"


def _watched(registry: Registry, contest: Contest, record: TrialRecord) -> str:
    lineup = registry.lineup()
    if record.outcome is not Outcome.HARM:
        return f"version {lineup.champion} stays"
    if (lineup.champion, lineup.previous) != (contest.challenger, contest.champion):
        return f"version {lineup.champion} is champion now, and stays"
    version = registry.rollback(actor=ACTOR, reason=f"canary: {record.reason}")
    return f"rolled back to version {version}"


def _child(record: TrialRecord) -> RunRecord:
    """For MLflow, beside the runs of the gates."""
    pairs = len(record.differences)
    mean = {"mean_difference": sum(record.differences) / pairs} if pairs else {}
    return RunRecord(
        f"canary: {record.contest.kind}",
        metrics={"pairs": float(pairs), **mean},
        tags={
            "outcome": record.outcome,
            "reason": record.reason,
            "champion": record.contest.champion,
        },
        passed=record.outcome is not Outcome.HARM,
    )
