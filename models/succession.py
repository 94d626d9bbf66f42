"""Who was champion when, by whom and why: the audit trail, and what it allows. Imports no MLflow.

Promotions and rollbacks move three aliases and leave an entry each. The entry is written before
the aliases move, so that the trail lacks no change.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum

from models.verdicts import Verdict, verdicts_from_json

GATES_TAG = "gate.verdicts"
"""Of a version: the verdicts of its gates, as JSON."""
TRAIL_PREFIX = "promotion."
"""Of the registered model's tags, one for each entry of the trail, and of a version's tags
that tell of its last promotion."""
ROLLED_BACK_PREFIX = "rollback."
"""Of the tags of a version that was rolled back."""
CANARY_PREFIX = "canary."
"""Of the tags of a version that had its trial on some of the engines."""


HARMFUL = "harm"
"""Outcome of a trial that speaks against a version."""


class Action(StrEnum):
    """What changed the champion."""

    PROMOTE = "promote"
    ROLL_BACK = "roll_back"


class Gates(StrEnum):
    """What the gates said of a version."""

    PASSED = "passed"
    FAILED = "failed"
    NONE = "none"
    """Nobody asked them."""


@dataclass(frozen=True, slots=True)
class Succession:
    """One change of the champion.

    Attributes:
        version: champion from then on.
        replaced: champion until then; None: there was none.
        at: ISO 8601, UTC.
        gates: what they said of the version at that time.
        forced: against an objection.
    """

    version: str
    replaced: str | None
    actor: str
    reason: str
    at: str
    action: Action = Action.PROMOTE
    gates: Gates = Gates.NONE
    forced: bool = False

    def __post_init__(self) -> None:
        """Nobody changes a champion namelessly or for no reason.

        Raises:
            ValueError: actor or reason is empty.
        """
        if not (self.actor.strip() and self.reason.strip()):
            raise ValueError("a promotion needs an actor and a reason")

    @property
    def json(self) -> str:
        """For the trail."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Lineup:
    """Which version has which alias; None: none has.

    Attributes:
        challenger_tags: of that version.
        last_change: of the champion.
    """

    champion: str | None
    challenger: str | None
    previous: str | None
    challenger_tags: Mapping[str, str]
    last_change: Succession | None


def trail_of(model_tags: Mapping[str, str]) -> tuple[Succession, ...]:
    """All changes, oldest first; a tag that holds none is no part of it."""
    entries = []
    for key in sorted(key for key in model_tags if key.startswith(TRAIL_PREFIX)):
        try:
            row = json.loads(model_tags[key])
            action, gates = Action(row.pop("action", "promote")), Gates(row.pop("gates", "none"))
            entries.append(Succession(action=action, gates=gates, **row))
        except (AttributeError, TypeError, ValueError):
            continue  # somebody's own tag
    return tuple(entries)


def verdicts_of(version_tags: Mapping[str, str]) -> tuple[Verdict, ...]:
    """What the gates said of a version; an unreadable record is a verdict that fails."""
    text = version_tags.get(GATES_TAG)
    if text is None:
        return ()
    try:
        return verdicts_from_json(text)
    except ValueError as error:
        return (Verdict("record", passed=False, reason=str(error)),)


def gates_of(version_tags: Mapping[str, str]) -> Gates:
    """The verdicts in one word."""
    verdicts = verdicts_of(version_tags)
    if not verdicts:
        return Gates.NONE
    return Gates.PASSED if all(verdict.passed for verdict in verdicts) else Gates.FAILED


def trial_of(version_tags: Mapping[str, str]) -> str | None:
    """How a version's trial on some of the engines ended; None: it had none to the end."""
    return version_tags.get(f"{CANARY_PREFIX}outcome")


def objection_to(version_tags: Mapping[str, str]) -> str | None:
    """Why a version should not become champion; None: nothing is known against it."""
    failed = [one for one in verdicts_of(version_tags) if not one.passed]
    if failed:
        return "; ".join(f"gate {verdict.name}: {verdict.reason}" for verdict in failed)
    rolled_back_at = version_tags.get(f"{ROLLED_BACK_PREFIX}at", "")
    if rolled_back_at > version_tags.get(f"{TRAIL_PREFIX}at", ""):
        why = version_tags.get(f"{ROLLED_BACK_PREFIX}reason")
        return f"it was rolled back at {rolled_back_at}: {why}"
    if trial_of(version_tags) == HARMFUL:
        return f"it did harm on trial: {version_tags.get(f'{CANARY_PREFIX}reason')}"
    return None


def predecessor(trail: Iterable[Succession], version: str) -> str | None:
    """Whom a version replaced when it was last promoted: where a second rollback would lead."""
    promotions = [
        entry for entry in trail if entry.version == version and entry.action is Action.PROMOTE
    ]
    return promotions[-1].replaced if promotions else None
