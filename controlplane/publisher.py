"""Gives plans their identity, keeps them, and sends them out."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from controlplane.broadcast import Broadcast
from controlplane.canary import TrialRecord
from controlplane.clock import Clock
from controlplane.errors import StoreError
from controlplane.metrics import Metrics
from controlplane.restart import Lineage
from controlplane.snapshot import ClassPolicy, ClassRule, Decision, Discipline, Plan, Snapshot
from controlplane.store.sqlite import Event, EventKind, SqliteStore
from models.classes import TaskClass

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class FleetPolicy:
    """What every snapshot says besides the weights."""

    task_classes: tuple[TaskClass, ...]
    default_weights: tuple[float, ...]
    rules: tuple[ClassRule, ...]
    ttl_s: float


@dataclass(frozen=True, slots=True)
class CanaryPlan:
    """What some engines are to run instead."""

    plan: Plan
    engine_ids: frozenset[str]


class Publisher:
    """The only writer of snapshots.

    Attributes:
        epoch: of this process.
        latest: the newest decision; None before the first.
        discipline: in force.
    """

    def __init__(
        self,
        *,
        policy: FleetPolicy,
        lineage: Lineage,
        discipline: Discipline,
        store: SqliteStore,
        broadcast: Broadcast,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self.epoch = lineage.epoch
        self.latest: Decision | None = None
        self.discipline = discipline
        self._latest_canary: CanaryPlan | None = None
        self._version = lineage.last_version
        self._unstored = False
        self._policy = policy
        self._store = store
        self._broadcast = broadcast
        self._clock = clock
        self._metrics = metrics
        self._one_at_a_time = asyncio.Lock()

    async def publish(self, plan: Plan, canary: CanaryPlan | None = None) -> Snapshot:
        """Number, store and send out a plan, and with it another one to some engines.

        Both get a version of their own, the canaries' first: an engine that changes sides is
        always sent a newer one, and the newest in the store is what most engines run.
        """
        async with self._one_at_a_time:
            return await self._publish(plan, canary)

    async def set_discipline(self, discipline: Discipline, *, actor: str, reason: str) -> Snapshot:
        """Keep and publish an operator's choice, with the weights in force.

        Raises:
            StoreError: it could not be kept; nothing has changed.
            RuntimeError: nothing has been published yet.
        """
        async with self._one_at_a_time:
            if self.latest is None:
                raise RuntimeError("a discipline needs a plan to be published with")
            event = self._event(EventKind.DISCIPLINE_CHANGED, actor, f"{discipline}: {reason}")
            await asyncio.to_thread(self._store.set_discipline, discipline, event)
            self.discipline = discipline
            log.info("discipline changed", discipline=discipline.value, actor=actor, reason=reason)
            return await self._publish(self.latest.plan, self._latest_canary)

    async def decision(self, version: int) -> Decision | None:
        """How a version came about; None when it is unknown or past retention.

        Raises:
            StoreError: the store can't be read.
        """
        if self.latest is not None and self.latest.version == version:
            return self.latest
        return await asyncio.to_thread(self._store.decision, version)

    @property
    def newest(self) -> tuple[int, int]:
        """Epoch and version of the last snapshot sent to anybody."""
        return self.epoch, self._version

    async def record(self, kind: EventKind, detail: str, actor: str = "controlplane") -> None:
        """Keep an event, of the control plane's own unless somebody else is behind it."""
        await self._stored(self._store.record, self._event(kind, actor, detail))

    async def keep_trial(self, trial: TrialRecord) -> None:
        """Keep how a trial stands."""
        await self._stored(self._store.set_trial, trial)

    async def stop(self) -> None:
        """Say in the store that no higher version exists, if the store knows that."""
        if self.latest is not None and not self._unstored:
            await self._stored(self._store.mark_clean_stop, self._version)

    async def _publish(self, plan: Plan, canary: CanaryPlan | None = None) -> Snapshot:
        special = None if canary is None else (await self._kept(canary.plan))[0]
        snapshot, decision = await self._kept(plan)
        await self._note_mode(plan)
        self.latest, self._latest_canary = decision, canary
        self._metrics.published(snapshot, plan)
        self._broadcast.send(
            snapshot,
            canary=special,
            canaries=frozenset() if canary is None else canary.engine_ids,
        )
        return snapshot

    async def _kept(self, plan: Plan) -> tuple[Snapshot, Decision]:
        """A plan with the next version, in the store if that takes it."""
        self._version += 1
        snapshot = self._snapshot(plan)
        decision = Decision(snapshot.version, snapshot.epoch, plan)
        self._unstored = not await self._stored(self._store.save, snapshot, decision)
        return snapshot, decision

    async def _stored(self, write: Callable[..., None], *values: object) -> bool:
        """Write, off the event loop; False, and a log line, when the store refuses."""
        try:
            await asyncio.to_thread(write, *values)
        except StoreError as error:
            self._metrics.store_failures.inc()
            log.warning("the store refused a write", error=str(error))
            return False
        return True

    async def _note_mode(self, plan: Plan) -> None:
        before = self.latest.plan.mode if self.latest else None
        if plan.mode is not before:
            log.info("mode changed", mode=plan.mode.value, reason=plan.mode_reason)
            await self.record(EventKind.MODE_CHANGED, f"{plan.mode}: {plan.mode_reason}")

    def _snapshot(self, plan: Plan) -> Snapshot:
        rows = zip(
            self._policy.task_classes, plan.shares, self._policy.default_weights, strict=True
        )
        return Snapshot(
            version=self._version,
            epoch=self.epoch,
            issued_at_unix_s=self._clock.unix_s(),
            ttl_s=self._policy.ttl_s,
            mode=plan.mode,
            mode_reason=plan.mode_reason,
            discipline=self.discipline,
            classes=tuple(ClassPolicy(*row) for row in rows),
            rules=self._policy.rules,
            model_version=plan.model_version,
        )

    def _event(self, kind: EventKind, actor: str, detail: str) -> Event:
        return Event(self._clock.unix_s(), kind, actor, detail)
