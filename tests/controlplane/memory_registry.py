"""A registry in memory that keeps to what the real one promises."""

from dataclasses import replace

from controlplane.canary import Outcome
from models.bundle import Bundle
from models.errors import CorruptBundle, RegistryUnavailable
from models.succession import (
    CANARY_PREFIX,
    GATES_TAG,
    Action,
    Lineup,
    Succession,
    objection_to,
)
from models.verdicts import Verdict, verdicts_to_json
from models.versions import CHALLENGER, CHAMPION, PREVIOUS, RunRecord

PASSED = {GATES_TAG: verdicts_to_json([Verdict("replay", passed=True, reason="better")])}
LONG_AGO = "2020-01-01T00:00:00+00:00"


class MemoryRegistry:
    """Version 1 is champion.

    Attributes:
        away: it answers nothing.
        at: when the next change of the champion is, ISO 8601.
    """

    def __init__(self) -> None:
        self.aliases = {CHAMPION: "1"}
        self.tags: dict[str, dict[str, str]] = {"1": {}}
        self.trail: list[Succession] = []
        self.children: list[tuple[str, RunRecord]] = []
        self.corrupt: set[str] = set()
        self.away = False
        self.at = LONG_AGO

    def train(self, version: str, tags: dict[str, str] = PASSED) -> None:
        self.aliases[CHALLENGER] = version
        self.tags[version] = dict(tags)

    def champion_version(self) -> str | None:
        self._answer()
        return self.aliases.get(CHAMPION)

    def history(self) -> tuple[Succession, ...]:
        self._answer()
        return tuple(self.trail)

    def lineup(self) -> Lineup:
        self._answer()
        challenger = self.aliases.get(CHALLENGER)
        return Lineup(
            self.aliases.get(CHAMPION),
            challenger,
            self.aliases.get(PREVIOUS),
            self.tags.get(challenger or "", {}),
            self.trail[-1] if self.trail else None,
        )

    def load(self, version: str) -> Bundle:
        self._answer()
        if version in self.corrupt:
            raise CorruptBundle(f"version {version} is damaged")
        return Bundle.untrained()

    def promote(self, version: str, *, actor: str, reason: str) -> None:
        self._answer()
        assert objection_to(self.tags[version]) is None
        before = self.aliases[CHAMPION]
        self.trail.append(Succession(version, before, actor, reason, self.at))
        self.aliases |= {CHAMPION: version, PREVIOUS: before}

    def rollback(self, *, actor: str, reason: str) -> str:
        self._answer()
        target = self.aliases.pop(PREVIOUS)
        last = self.aliases[CHAMPION]
        self.trail.append(Succession(target, last, actor, reason, self.at, Action.ROLL_BACK))
        self.tags[last] |= {"rollback.at": self.at, "rollback.reason": reason}
        self.aliases[CHAMPION] = target
        return target

    def record_trial(self, version: str, *, outcome: Outcome, reason: str) -> None:
        self._answer()
        self.tags[version] |= {f"{CANARY_PREFIX}outcome": outcome, f"{CANARY_PREFIX}reason": reason}

    def attach(self, version: str, child: RunRecord) -> None:
        self._answer()
        self.children.append((version, replace(child)))

    def _answer(self) -> None:
        if self.away:
            raise RegistryUnavailable("the store is locked")
