"""Which model is on trial against which, and what is remembered of it."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from controlplane.canary.blocks import Arm
from controlplane.canary.trial import Outcome
from models.succession import Action, Gates, Lineup, gates_of, objection_to, trial_of


class Kind(StrEnum):
    """What a contest is for."""

    TRIAL = "trial"
    """Whether the challenger may become champion."""
    WATCH = "watch"
    """Whether a new champion may stay."""


@dataclass(frozen=True, slots=True)
class Contest:
    """Two versions on the same engines, by turns.

    Attributes:
        challenger: of a watch, the new champion.
        champion: of a watch, the one before.
        since: of a watch, when the promotion was, ISO 8601; it names the promotion.
    """

    kind: Kind
    challenger: str
    champion: str
    since: str | None = None

    @property
    def serving(self) -> str:
        """The version that all other engines run."""
        return self.champion if self.kind is Kind.TRIAL else self.challenger

    @property
    def guest(self) -> str:
        """The version that only canaries run, in its turns."""
        return self.challenger if self.kind is Kind.TRIAL else self.champion

    @property
    def guest_arm(self) -> Arm:
        """Whose turns these are."""
        return Arm.CHALLENGER if self.kind is Kind.TRIAL else Arm.CHAMPION

    @property
    def guest_role(self) -> str:
        """What the guest is called in reasons."""
        return "challenger" if self.kind is Kind.TRIAL else "previous champion"

    def __str__(self) -> str:
        """For people."""
        if self.kind is Kind.TRIAL:
            return f"challenger {self.challenger} on trial against champion {self.champion}"
        return f"new champion {self.challenger} watched against {self.champion}, the one before"


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """What outlives the process.

    Attributes:
        differences: of losses, challenger less champion, of the pairs so far.
        reason: for the outcome; empty while it goes on.
        settled: what the outcome calls for is done.
        watched: the promotion that was watched last, to the end.
    """

    contest: Contest
    started_unix_s: float
    differences: tuple[float, ...] = ()
    outcome: Outcome = Outcome.GOES_ON
    reason: str = ""
    settled: bool = False
    watched: str | None = None


def contest_for(
    lineup: Lineup, *, watched: str | None, now_unix_s: float, watch_s: float
) -> Contest | None:
    """What is to be tried now; None: nothing.

    A promotion is watched first, so long after it. Then a challenger whose gates passed has its
    trial, once in its life.
    """
    champion, challenger, change = lineup.champion, lineup.challenger, lineup.last_change
    if champion is None:
        return None
    if (
        change is not None
        and change.action is Action.PROMOTE
        and change.version == champion
        and change.replaced not in (None, champion)
        and change.replaced == lineup.previous
        and change.at != watched
        and now_unix_s - datetime.fromisoformat(change.at).timestamp() < watch_s
    ):
        return Contest(Kind.WATCH, champion, change.replaced, change.at)
    tags = lineup.challenger_tags
    if (
        challenger in (None, champion)
        or gates_of(tags) is not Gates.PASSED
        or objection_to(tags) is not None
        or trial_of(tags) is not None
    ):
        return None
    return Contest(Kind.TRIAL, challenger, champion)


def why_over(contest: Contest, lineup: Lineup) -> str:
    """Why a contest that was wanted once no longer is."""
    if lineup.champion != contest.serving:
        return f"version {lineup.champion} is champion now"
    if contest.kind is Kind.WATCH:
        return "the time to watch is up"
    if lineup.challenger != contest.challenger:
        return f"version {lineup.challenger} is the challenger now"
    return objection_to(lineup.challenger_tags) or "its gates are not known to have passed any more"
