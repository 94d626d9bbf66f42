"""The background thread that writes the metrics, so that the scheduler's thread need not."""

import threading
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Gauge

from dataplane.clock import Clock
from dataplane.engine_series import EngineSeries
from dataplane.faults import FaultBarrier
from dataplane.meter import Meter, Tally
from dataplane.notices import RefusalNotices
from dataplane.series import ClassSeries, Families, GrowingCount
from dataplane.state import EngineState
from dataplane.subscriber.in_force import TableInForce

_NOTHING_YET = Tally()


class Exporter:
    """Writes the meter, the engine's state and the snapshot in force, every so often.

    Args:
        state: gives the engine's latest state.
        barrier: ends and counts faults of the plugin.
        notices: to the API servers; None: nothing is refused there.
        registry: where the metrics register. The files of the multi-process mode do not
            depend on it, so by default each exporter has its own.
    """

    def __init__(
        self,
        *,
        meter: Meter,
        in_force: TableInForce,
        state: Callable[[], EngineState],
        barrier: FaultBarrier,
        clock: Clock,
        interval_s: float,
        notices: RefusalNotices | None = None,
        registry: CollectorRegistry | None = None,
    ) -> None:
        self._meter = meter
        self._in_force = in_force
        self._state = state
        self._barrier = barrier
        self._clock = clock
        self._interval_s = interval_s
        self._notices = notices
        registry = registry or CollectorRegistry()
        self._families = Families(registry)
        self._engine = EngineSeries(registry)
        self._classes: dict[str, ClassSeries] = {}
        self._snapshot_age_s: Gauge | None = None
        self._applied = GrowingCount(self._families.snapshots.labels("applied"))
        self._refused = GrowingCount(self._families.snapshots.labels("refused"))
        self._faults = GrowingCount(self._families.plugin_faults)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trimtab-metrics", daemon=True)

    def start(self) -> None:
        """Start writing."""
        self._thread.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """Write a last time and stop."""
        self._stopped.set()
        self._thread.join(timeout_s)

    def flush(self, now_s: float) -> None:
        """Write everything that changed."""
        table = self._in_force.at(now_s)
        # list() copies a dict in one go; the scheduler's thread may add a class meanwhile.
        for task_class in {*table.policies, *list(self._meter.tallies)}:
            series = self._series(task_class)
            series.write_counts(self._meter.tallies.get(task_class, _NOTHING_YET))
            series.write_weight(table.policy(task_class).weight)
        state = self._state()
        for class_state in state.classes:
            self._series(class_state.task_class).write_state(class_state, now_s)
        self._engine.write(state)
        self._write_snapshot(now_s)
        self._faults.write(self._barrier.faults)

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_s):
            now_s = self._clock.monotonic_s()
            with self._barrier:
                self.flush(now_s)
            with self._barrier:
                self._post_notice(now_s)
        with self._barrier:
            self.flush(self._clock.monotonic_s())
        with self._barrier:
            self._withdraw_notice()

    def _post_notice(self, now_s: float) -> None:
        if self._notices is not None:
            self._notices.write(now_s)

    def _withdraw_notice(self) -> None:
        if self._notices is not None:
            self._notices.withdraw()

    def _write_snapshot(self, now_s: float) -> None:
        table = self._in_force.at(now_s)
        self._applied.write(self._in_force.applied)
        self._refused.write(self._in_force.refused)
        self._families.snapshot_version.set(table.version)
        self._families.neutral.set(table.neutral)
        age_s = table.age_s(now_s)
        if age_s is not None:
            self._snapshot_age_s = self._snapshot_age_s or self._families.snapshot_age_s()
            self._snapshot_age_s.set(age_s)

    def _series(self, task_class: str) -> ClassSeries:
        series = self._classes.get(task_class)
        if series is None:
            series = self._classes[task_class] = ClassSeries(self._families, task_class)
        return series
