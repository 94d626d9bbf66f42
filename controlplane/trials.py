"""Other models on some of the engines: begun, followed and brought to their end.

A challenger whose gates passed is tried against the champion; a new champion is watched against
the one before it. What is decided, and when, is in `controlplane.canary`; here it meets engines,
registry and store. Whatever fails here, all engines go on with the champion.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import structlog

from controlplane.canary import (
    Contest,
    EndedBlock,
    Kind,
    Outcome,
    Timetable,
    Trial,
    TrialPolicy,
    TrialRecord,
    Turns,
    contest_for,
    why_over,
)
from controlplane.errors import StoreError
from controlplane.forecaster import Champion, Forecast, Forecaster
from controlplane.pilot import Pilot
from controlplane.publisher import CanaryPlan
from controlplane.snapshot import Discipline, Plan
from controlplane.store.sqlite import EventKind
from controlplane.trial_outcome import ACTOR, carry_out
from models.errors import ModelError, RegistryUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from controlplane.clock import Clock
    from controlplane.guardrails import Shares
    from controlplane.metrics import Metrics
    from controlplane.publisher import Publisher
    from controlplane.registry_thread import RegistryThread
    from controlplane.status import EngineStatus
    from controlplane.store.sqlite import SqliteStore
    from models.classes import TaskClass
    from models.window import Window

log = structlog.get_logger(__name__)

_WEIGHED = (Discipline.APQ, Discipline.WFQ, Discipline.STRICT, Discipline.CP_SCORE)
"""Under the others weights have no say, and two models are alike."""


@dataclass(slots=True)
class _Running:
    """A contest under way.

    Attributes:
        discipline: in force in the last tick.
        on: engines that run the guest now.
        obstacle: why it stands still; None: it does not.
    """

    contest: Contest
    forecaster: Forecaster
    pilot: Pilot
    turns: Turns
    trial: Trial
    discipline: Discipline
    on: frozenset[str] = frozenset()
    obstacle: str | None = None

    def __str__(self) -> str:
        """How it stands, for people."""
        where = f", now on {', '.join(sorted(self.on))}" if self.on else ""
        halted = f"; stands still: {self.obstacle}" if self.obstacle else ""
        return f"{self.contest}: {self.trial.reason}{where}{halted}"


class Trials:
    """At most one contest at a time.

    Args:
        registry: where the versions are.
        serving: holds the champion.
        new_pilot: starts from shares [C].
        engines: who is connected now.
        store: recalls what a process before this one began.
    """

    def __init__(
        self,
        *,
        policy: TrialPolicy,
        task_classes: Sequence[TaskClass],
        registry: RegistryThread,
        serving: Forecaster,
        new_pilot: Callable[[Shares], Pilot],
        engines: Callable[[], tuple[EngineStatus, ...]],
        publisher: Publisher,
        store: SqliteStore,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._policy = policy
        self._task_classes = tuple(task_classes)
        self._registry = registry
        self._serving = serving
        self._new_pilot = new_pilot
        self._engines = engines
        self._publisher = publisher
        self._store = store
        self._clock = clock
        self._metrics = metrics
        self._running: _Running | None = None
        self._record: TrialRecord | None = None
        self._recalled = False
        self._unusable: set[str] = set()
        self._last_problem: str | None = None

    @property
    def status(self) -> str | None:
        """Which contest is under way, and how it stands; None: none is."""
        return None if self._running is None else str(self._running)

    def forecast(self, window: Window) -> Forecast | None:
        """The guest's, on the champion's window; from any thread."""
        running = self._running
        return None if running is None else running.forecaster.forecast(window)

    async def canary(self, guest: Forecast | None) -> CanaryPlan | None:
        """What canaries are to run in this tick instead of the champion's plan."""
        running = self._running
        if running is None:
            return None
        if running.discipline is not self._publisher.discipline:
            running.turns.disturb()
            running.discipline = self._publisher.discipline
        now_s, newest = self._clock.now_s(), self._publisher.newest
        turn = running.turns.tick(now_s, self._engines(), newest)
        if turn.ended is not None:
            await self._block_ended(running, turn.ended)
        plan = self._guest_plan(running, guest)
        plays = turn.arm is running.contest.guest_arm and running is self._running
        running.on = turn.canaries if plan is not None and plays else frozenset()
        self._show()
        return CanaryPlan(plan, running.on) if plan is not None and running.on else None

    async def poll(self) -> None:
        """Ask the registry what is to be tried, and do there what an outcome calls for."""
        try:
            await self._follow()
            self._last_problem = None
        except ModelError as error:
            if str(error) != self._last_problem:
                log.warning("a trial waits for the registry", error=str(error))
            self._last_problem = str(error)

    def _guest_plan(self, running: _Running, guest: Forecast | None) -> Plan | None:
        """The guest flies in all turns, so that its course is its own; None: it can't."""
        running.obstacle = self._obstacle(running.contest, guest)
        if guest is None or running.obstacle is not None:
            running.turns.disturb()
            return None
        plan, _ = running.pilot.plan(guest)
        return replace(plan, mode_reason=f"canary: {plan.mode_reason}")

    def _obstacle(self, contest: Contest, guest: Forecast | None) -> str | None:
        """Why a turn would tell nothing; None: it would."""
        discipline = self._publisher.discipline
        if discipline not in _WEIGHED:
            return f"weights have no say under {discipline}"
        if self._serving.serving_version != contest.serving:
            return f"version {contest.serving} does not serve"
        if guest is None:
            return "there is no forecast on a window"
        return None if guest.model_version == contest.guest else guest.reason

    async def _block_ended(self, running: _Running, ended: EndedBlock) -> None:
        self._metrics.block_ended(counts=ended.loss is not None)
        pairs = running.trial.pairs
        running.trial.block_ended(ended.moment, ended.loss)
        if running.trial.pairs > pairs:
            log.info("a pair of blocks ended", canary=str(running))
            await self._note(running)

    async def _note(self, running: _Running) -> None:
        """Remember how it stands; a contest that is decided plays no more."""
        trial = running.trial
        decided = trial.outcome is not Outcome.GOES_ON
        if self._record is None or running is not self._running:
            return
        self._record = replace(
            self._record,
            differences=tuple(trial.differences),
            outcome=trial.outcome,
            reason=trial.reason if decided else "",
        )
        if decided:
            log.info(
                "a trial is decided", contest=str(running.contest), outcome=trial.outcome.value
            )
            self._running = None
        await self._publisher.keep_trial(self._record)

    async def _follow(self) -> None:
        record = await self._recall()
        if record is not None and not record.settled and record.outcome is not Outcome.GOES_ON:
            await self._settle(record)
            return
        lineup = await self._registry.call(lambda registry: registry.lineup())
        wanted = contest_for(
            lineup,
            watched=record.watched if record else None,
            now_unix_s=self._clock.unix_s(),
            watch_s=self._policy.watch_s,
        )
        record = self._record
        if record is not None and not record.settled:
            if record.outcome is not Outcome.GOES_ON:
                return  # a tick has just decided it
            if record.contest != wanted:
                why = why_over(record.contest, lineup)
                await self._end(replace(record, outcome=Outcome.UNDECIDED, reason=why), "it stops")
                return
        if wanted is not None and self._running is None and self._engines():
            await self._begin(wanted)

    async def _recall(self) -> TrialRecord | None:
        """The record, the first time that of a process before this one."""
        if not self._recalled:
            try:
                self._record = await asyncio.to_thread(self._store.trial)
            except StoreError as error:
                log.warning("the last trial can't be recalled", error=str(error))
            self._recalled = True
        return self._record

    async def _begin(self, contest: Contest) -> None:
        """Start a contest, or go on with it where a process before this one was."""
        if contest.guest in self._unusable or contest.serving != self._serving.serving_version:
            return
        forecaster = await self._loaded(contest)
        latest, last = self._publisher.latest, self._record
        if forecaster is None or latest is None:
            return
        resumes = last is not None and last.contest == contest and not last.settled
        if last is None or not resumes:
            watched = None if last is None else last.watched
            last = TrialRecord(contest, self._clock.unix_s(), watched=watched)
        self._record = last
        kind = EventKind.TRIAL_RESUMED if resumes else EventKind.TRIAL_STARTED
        running = self._running = _Running(
            contest,
            forecaster,
            self._new_pilot(np.array(latest.plan.shares)),
            self._turns(last),
            Trial.resumed(self._policy.limits, last.differences),
            self._publisher.discipline,
        )
        log.info(kind.value, contest=str(contest), pairs=running.trial.pairs)
        await self._publisher.record(kind, f"{contest}: {running.trial.reason}", ACTOR)
        await self._note(running)

    async def _loaded(self, contest: Contest) -> Forecaster | None:
        """A forecaster with the guest; None: that can't be used, now or later."""
        version = contest.guest
        try:
            bundle = await self._registry.call(lambda registry: registry.load(version))
        except RegistryUnavailable:
            raise
        except ModelError as error:
            self._unusable.add(version)
            log.warning("a model can't be tried", contest=str(contest), error=str(error))
            await self._publisher.record(
                EventKind.TRIAL_ENDED, f"{contest}: never began: {error}", ACTOR
            )
            return None
        forecaster = Forecaster(self._task_classes, role=contest.guest_role)
        forecaster.swap(Champion(version, bundle))
        return forecaster

    def _turns(self, record: TrialRecord) -> Turns:
        policy, contest = self._policy, record.contest
        timetable = Timetable(
            self._clock.now_s(),
            policy.block_s,
            policy.washout_s,
            seed=f"{contest} {record.started_unix_s} {len(record.differences)}",
        )
        values = {one.name: one.value for one in self._task_classes}
        return Turns(timetable, ratio=policy.ratio, values=values)

    async def _settle(self, record: TrialRecord) -> None:
        """Do what an outcome calls for; as long as the registry is away, try again later.

        Raises:
            RegistryUnavailable: it is away.
        """
        try:
            done = await self._registry.call(lambda registry: carry_out(registry, record))
        except RegistryUnavailable:
            raise
        except ModelError as error:
            done = f"could not be carried out: {error}"
        await self._end(record, done)

    async def _end(self, record: TrialRecord, done: str) -> None:
        """The contest is over, and so is all that follows from it."""
        contest = record.contest
        watched = contest.since if contest.kind is Kind.WATCH else record.watched
        self._running = None
        self._record = replace(record, settled=True, watched=watched)
        self._show()
        self._metrics.trial_ended(contest, record.outcome)
        detail = f"{contest}: {record.outcome}: {record.reason}; {done}"
        log.info("trial ended", contest=str(contest), outcome=record.outcome.value, done=done)
        await self._publisher.record(EventKind.TRIAL_ENDED, detail, ACTOR)
        await self._publisher.keep_trial(self._record)

    def _show(self) -> None:
        running = self._running
        if running is None:
            self._metrics.no_trial()
        else:
            self._metrics.on_trial(running.contest, running.trial, len(running.on))
