"""The plugin's metrics in Prometheus form, as docs/architecture.md lists them.

vLLM's /metrics merges the files of all its processes when PROMETHEUS_MULTIPROC_DIR is set;
each gauge says how several engine cores behind one /metrics merge. Nothing here runs on the
scheduler's thread: writing a new series may grow a mapped file.
"""

from collections.abc import Iterable
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from dataplane.meter import Outcome, Tally
from dataplane.state import ClassState

Merge = Literal["livesum", "livemax", "livemin", "livemostrecent"]

LATENCY_BUCKETS_S = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0),
    *(7.5, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 120.0, 300.0, 600.0),
)
TPOT_BUCKETS_S = (
    *(0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5),
    *(0.75, 1.0, 2.0, 5.0, 10.0, 60.0, 600.0),
)


class GrowingCount:
    """Writes a count that grows elsewhere into a counter, each increment once."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._written = 0

    def write(self, total: int) -> None:
        """Bring the counter up to the total."""
        if total > self._written:
            self._counter.inc(total - self._written)
            self._written = total


class Families:
    """The metric families with a ``task_class`` label, and those of the whole plugin."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.arrived = self._counter("requests_arrived", "Requests that entered the queue")
        self.finished = self._counter(
            "requests_finished", "Requests that ended", ("task_class", "outcome")
        )
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of arrived requests")
        self.generation_tokens = self._counter("generation_tokens", "Tokens generated")
        self.preemptions = self._counter("preemptions", "Times a request was preempted")
        self.recomputed_tokens = self._counter(
            "recomputed_tokens", "Computed tokens of preempted requests, to be computed again"
        )
        self.queue_time_s = self._histogram("queue_time", "Arrival to first dispatch")
        self.ttft_s = self._histogram("ttft", "Arrival to first token, in the engine")
        self.tpot_s = self._histogram(
            "tpot", "Mean time per output token after the first", TPOT_BUCKETS_S
        )
        self.e2e_s = self._histogram("e2e", "Arrival to last token, in the engine")
        self.waiting = self._gauge("waiting_requests", "Waiting now", "livesum")
        self.running = self._gauge("running_requests", "Running now", "livesum")
        self.waiting_past_slo = self._gauge(
            "waiting_past_slo_requests", "Waiting now, longer than the TTFT SLO", "livesum"
        )
        self.oldest_wait_s = self._gauge(
            "oldest_wait_seconds", "Wait of the oldest waiting request", "livemax"
        )
        self.weight = self._gauge("class_weight", "Weight in force", "livemostrecent")
        self.snapshot_version = self._gauge(
            "snapshot_version", "Snapshot in force; 0: none yet", "livemin", ()
        )
        self.neutral = self._gauge("neutral", "1 while default weights are in force", "livemax", ())
        self.snapshots = self._counter("snapshots", "Snapshots received", ("result",))
        self.plugin_faults = self._counter(
            "plugin_faults", "Faults after which the plugin behaved as stock vLLM", ()
        )

    def snapshot_age_s(self) -> Gauge:
        """Made when the first snapshot arrives: until then the age is unknown, not 0."""
        return self._gauge(
            "snapshot_age_seconds", "Since the snapshot in force arrived", "livemax", ()
        )

    def _counter(self, name: str, meaning: str, labels: Iterable[str] = ("task_class",)) -> Counter:
        return Counter(f"trimtab_{name}", meaning, labels, registry=self._registry)

    def _histogram(
        self, name: str, meaning: str, buckets_s: tuple[float, ...] = LATENCY_BUCKETS_S
    ) -> Histogram:
        return Histogram(
            f"trimtab_{name}_seconds",
            meaning,
            ("task_class",),
            registry=self._registry,
            buckets=buckets_s,
        )

    def _gauge(
        self, name: str, meaning: str, merge: Merge, labels: Iterable[str] = ("task_class",)
    ) -> Gauge:
        return Gauge(
            f"trimtab_{name}",
            meaning,
            labels,
            registry=self._registry,
            multiprocess_mode=merge,
        )


class ClassSeries:
    """The series of one class: all of them exist, with zeroes, once this does."""

    def __init__(self, families: Families, task_class: str) -> None:
        def count(family: Counter, *labels: str) -> GrowingCount:
            return GrowingCount(family.labels(task_class, *labels))

        self._arrived = count(families.arrived)
        self._prompt_tokens = count(families.prompt_tokens)
        self._generation_tokens = count(families.generation_tokens)
        self._preemptions = count(families.preemptions)
        self._recomputed_tokens = count(families.recomputed_tokens)
        self._finished = {outcome: count(families.finished, outcome) for outcome in Outcome}
        self._queue_time_s = families.queue_time_s.labels(task_class)
        self._ttft_s = families.ttft_s.labels(task_class)
        self._tpot_s = families.tpot_s.labels(task_class)
        self._e2e_s = families.e2e_s.labels(task_class)
        self._waiting = families.waiting.labels(task_class)
        self._running = families.running.labels(task_class)
        self._waiting_past_slo = families.waiting_past_slo.labels(task_class)
        self._oldest_wait_s = families.oldest_wait_s.labels(task_class)
        self._weight = families.weight.labels(task_class)

    def write_counts(self, tally: Tally) -> None:
        """Write what has been counted and observed since the last time."""
        self._arrived.write(tally.arrived)
        self._prompt_tokens.write(tally.prompt_tokens)
        self._generation_tokens.write(tally.generated_tokens)
        self._preemptions.write(tally.preempted)
        self._recomputed_tokens.write(tally.recomputed_tokens)
        for outcome, count in self._finished.items():
            count.write(tally.finished[outcome])
        for histogram, pending_s in (
            (self._queue_time_s, tally.queue_time_s),
            (self._ttft_s, tally.ttft_s),
            (self._tpot_s, tally.tpot_s),
            (self._e2e_s, tally.e2e_s),
        ):
            # A deque may grow meanwhile: only popping is safe.
            while pending_s:
                histogram.observe(pending_s.popleft())

    def write_state(self, state: ClassState, now_s: float) -> None:
        """Write the queue as it is now."""
        self._waiting.set(state.waiting)
        self._running.set(state.running)
        self._waiting_past_slo.set(state.waiting_past_slo)
        self._oldest_wait_s.set(state.oldest_wait_s(now_s))

    def write_weight(self, weight: float) -> None:
        """Write the weight in force."""
        self._weight.set(weight)
