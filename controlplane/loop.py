"""The tick: window, forecast, mode, guardrails, snapshot."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import structlog

from controlplane.clock import Clock, ticks
from controlplane.dither import OFF, Dither, dithered
from controlplane.errors import PrometheusUnreachable, TelemetryError
from controlplane.forecaster import Forecast, Forecaster
from controlplane.guardrails import Guarded, Shares, default_shares, floor_shares, guard
from controlplane.metrics import Metrics
from controlplane.modes import MissLimits, Standing, after_miss, after_window
from controlplane.publisher import Publisher
from controlplane.snapshot import ClassDecision, Feature, Mode, Plan, unexplained_plan
from models.classes import TaskClass
from models.window import Window

log = structlog.get_logger(__name__)


class ControlLoop:
    """Decides once per tick and remembers what the next decision needs.

    Args:
        fetch: blocking; the window that ends at a Unix time, or TelemetryError.
        standing: where the process starts.
        shares: [C] in force at the start; sum to 1, none below its floor.
    """

    def __init__(
        self,
        *,
        task_classes: Sequence[TaskClass],
        fetch: Callable[[float], Window],
        forecaster: Forecaster,
        publisher: Publisher,
        limits: MissLimits,
        max_log_share_step: float,
        dither: Dither = OFF,
        tick_s: float,
        standing: Standing,
        shares: Shares,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self.standing = standing
        self._shares = shares
        self._task_classes = tuple(task_classes)
        self._fetch = fetch
        self._forecaster = forecaster
        self._publisher = publisher
        self._limits = limits
        self._max_log_share_step = max_log_share_step
        self._dither = dither
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
        self.standing = self._judge(observed)
        plan = self._plan(observed)
        self._shares = np.array(plan.shares)
        await self._publisher.publish(plan)
        self._metrics.tick_s.observe(self._clock.now_s() - started_s)

    def close(self) -> None:
        """Let the telemetry thread go."""
        self._telemetry_thread.shutdown(wait=False, cancel_futures=True)

    async def _observe(self) -> Forecast | TelemetryError:
        """The forecast on the current window, or why there is none."""
        end_unix_s = self._clock.unix_s()
        work = asyncio.get_running_loop().run_in_executor(
            self._telemetry_thread, lambda: self._forecaster.forecast(self._fetch(end_unix_s))
        )
        try:
            return await asyncio.wait_for(work, self._tick_s)
        except TelemetryError as error:
            return error
        except TimeoutError:
            return PrometheusUnreachable(f"no window within a tick ({self._tick_s:g} s)")

    def _judge(self, observed: Forecast | TelemetryError) -> Standing:
        if isinstance(observed, Forecast):
            return after_window(observed.mode, observed.reason)
        self._metrics.missed_windows.inc()
        if self.standing.missed_windows == 0:  # what follows shows in the mode
            log.warning("missed a window", error=str(observed), kind=type(observed).__name__)
        return after_miss(self.standing, str(observed), self._limits)

    def _plan(self, observed: Forecast | TelemetryError) -> Plan:
        if isinstance(observed, Forecast):
            changed = dithered(
                observed.wanted,
                self._task_classes,
                self._dither,
                at_unix_s=observed.window_end_unix_s,
            )
            guarded = self._guard(changed.wanted)
            plan = forecast_plan(observed, guarded, self._task_classes, changed.shifts)
            self._metrics.guarded(plan)
            return plan
        return self._plan_without_window()

    def _plan_without_window(self) -> Plan:
        mode, reason = self.standing.mode, self.standing.reason
        shares = self._default_shares if mode is Mode.STATIC else self._shares
        return unexplained_plan(mode, reason, self._task_classes, shares.tolist())

    def _guard(self, wanted: Shares) -> Guarded:
        return guard(
            wanted,
            previous=self._shares,
            floors=floor_shares(self._task_classes),
            max_log_share_step=self._max_log_share_step,
        )


def forecast_plan(
    forecast: Forecast,
    guarded: Guarded,
    task_classes: Sequence[TaskClass],
    shifts: Shares | None = None,
) -> Plan:
    """A plan that remembers how each weight came about."""
    residuals = forecast.residuals
    decisions = tuple(
        ClassDecision(
            task_class=task_class.name,
            weight=float(guarded.shares[row]),
            rule_share=float(forecast.rule_shares[row]),
            residual=None if residuals is None else float(residuals[row]),
            features=_features(forecast, row),
            guardrails=tuple(rail.value for rail in guarded.fired[row]),
            dither=None if shifts is None else float(shifts[row]),
        )
        for row, task_class in enumerate(task_classes)
    )
    return Plan(
        forecast.mode,
        forecast.reason,
        decisions,
        forecast.model_version,
        forecast.window_end_unix_s,
    )


def _features(forecast: Forecast, row: int) -> tuple[Feature, ...]:
    values = forecast.features[row].tolist()
    return tuple(
        Feature(name, value if np.isfinite(value) else None)
        for name, value in zip(forecast.feature_names, values, strict=True)
    )


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
