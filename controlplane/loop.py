"""The tick: window, forecast, mode, guardrails, snapshot."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import structlog

from controlplane.clock import Clock, ticks
from controlplane.drift import Drift, DriftMonitor
from controlplane.errors import PrometheusUnreachable, TelemetryError
from controlplane.forecaster import Forecast, Forecaster
from controlplane.guardrails import default_shares
from controlplane.metrics import Metrics
from controlplane.modes import MissLimits, Standing, after_miss, after_window
from controlplane.pilot import Pilot
from controlplane.publisher import Publisher
from controlplane.snapshot import Mode, Plan, unexplained_plan
from controlplane.store.sqlite import EventKind
from controlplane.trials import Trials
from models.classes import TaskClass
from models.window import Window

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Observation:
    """What a tick sees.

    Attributes:
        guest: of the model that plays on some engines; None: none does.
    """

    forecast: Forecast
    drift: Drift
    guest: Forecast | None

    @property
    def heeding_drift(self) -> Forecast:
        """The forecast, under the rule when the model has drifted."""
        reason = self.drift.reason
        return self.forecast if reason is None else self.forecast.yielding(reason)


class ControlLoop:
    """Decides once per tick and remembers what the next decision needs.

    Attributes:
        standing: after the last tick.
        retrain_reason: why a retrain is asked for; None: it is not.

    Args:
        fetch: blocking; the window that ends at a Unix time, or TelemetryError.
        standing: where the process starts.
        pilot: starts from the shares in force.
        trials: of other models on some of the engines.
    """

    def __init__(
        self,
        *,
        task_classes: Sequence[TaskClass],
        fetch: Callable[[float], Window],
        forecaster: Forecaster,
        publisher: Publisher,
        limits: MissLimits,
        pilot: Pilot,
        tick_s: float,
        standing: Standing,
        clock: Clock,
        metrics: Metrics,
        trials: Trials,
    ) -> None:
        self.standing = standing
        self.retrain_reason: str | None = None
        self._task_classes = tuple(task_classes)
        self._fetch = fetch
        self._forecaster = forecaster
        self._publisher = publisher
        self._limits = limits
        self._pilot = pilot
        self._trials = trials
        self._drift = DriftMonitor([task_class.name for task_class in task_classes])
        self._tick_s = tick_s
        self._default_shares = default_shares(task_classes)
        self._clock = clock
        self._metrics = metrics
        # A thread that hangs in a slow answer delays its successor, not the loop.
        self._telemetry_thread = ThreadPoolExecutor(1, thread_name_prefix="telemetry")

    async def publish_first(self) -> None:
        """What the process starts with, before any window."""
        await self._publisher.publish(self._plan_without_window())

    async def tick(self) -> None:
        """One decision, from the window to the engines."""
        started_s = self._clock.now_s()
        observed = await self._observe()
        if isinstance(observed, TelemetryError):
            plan, guest = self._missed(observed), None
        else:
            plan, guest = self._ruled(observed.heeding_drift), observed.guest
            await self._ask_for_retrain(observed.drift)
        await self._publisher.publish(plan, await self._trials.canary(guest))
        self._metrics.tick_s.observe(self._clock.now_s() - started_s)

    def close(self) -> None:
        """Let the telemetry thread go."""
        self._telemetry_thread.shutdown(wait=False, cancel_futures=True)

    async def _observe(self) -> Observation | TelemetryError:
        """The forecast on the current window, or why there is none."""
        end_unix_s = self._clock.unix_s()
        work = asyncio.get_running_loop().run_in_executor(
            self._telemetry_thread, self._look, end_unix_s
        )
        try:
            return await asyncio.wait_for(work, self._tick_s)
        except TelemetryError as error:
            return error
        except TimeoutError:
            return PrometheusUnreachable(f"no window within a tick ({self._tick_s:g} s)")

    def _look(self, end_unix_s: float) -> Observation:
        window = self._fetch(end_unix_s)
        forecast = self._forecaster.forecast(window)
        drift = self._drift.observe(forecast)
        return Observation(forecast, drift, self._trials.forecast(window))

    async def _ask_for_retrain(self, drift: Drift) -> None:
        """Leave word in the store when there is a new reason to."""
        self._metrics.drifted(drift)
        before, self.retrain_reason = self.retrain_reason, drift.retrain
        if drift.retrain is not None and drift.retrain != before:
            log.warning("a retrain is asked for", reason=drift.retrain)
            await self._publisher.record(EventKind.RETRAIN_ASKED, drift.retrain)

    def _ruled(self, forecast: Forecast) -> Plan:
        """The plan of a tick with a window."""
        plan, ruling = self._pilot.plan(forecast)
        self.standing = after_window(plan.mode, plan.mode_reason)
        self._metrics.guarded(plan, ruling)
        return plan

    def _missed(self, problem: TelemetryError) -> Plan:
        """The plan of a tick without one."""
        self._metrics.missed_windows.inc()
        if self.standing.missed_windows == 0:  # what follows shows in the mode
            log.warning("missed a window", error=str(problem), kind=type(problem).__name__)
        self.standing = after_miss(self.standing, str(problem), self._limits)
        return self._plan_without_window()

    def _plan_without_window(self) -> Plan:
        mode, reason = self.standing.mode, self.standing.reason
        if mode is Mode.STATIC:
            self._pilot.restart(self._default_shares)
        shares = self._pilot.course.shares.tolist()
        return unexplained_plan(mode, reason, self._task_classes, shares)


async def run_every(
    clock: Clock,
    period_s: float,
    step: Callable[[], Awaitable[None]],
    on_failure: Callable[[], None],
) -> None:
    """Run ``step`` on absolute deadlines, for ever, whatever it raises."""
    async for _ in ticks(clock, period_s):
        try:
            await step()
        except Exception:
            # The one broad catch: a defect in one tick must not end all later ones.
            # Engines live on the last snapshot until its TTL.
            log.exception("a step failed", step=step.__qualname__)
            on_failure()
