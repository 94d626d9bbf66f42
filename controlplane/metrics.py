"""The control plane's own metrics.

They start with trimtab_controlplane_, so that they never mix with the engines'
trimtab_ metrics in one Prometheus.
"""

import math

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from controlplane.canary import Contest, Outcome, Trial
from controlplane.drift import Drift
from controlplane.errors import AddressInUse
from controlplane.guardrails import Ruling
from controlplane.snapshot import Mode, Plan, Snapshot

_PREFIX = "trimtab_controlplane"
_TICK_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Metrics:
    """One registry per control plane, so that two can live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.tick_s = Histogram(
            f"{_PREFIX}_tick_seconds",
            "Duration of a tick",
            buckets=_TICK_BUCKETS_S,
            registry=self.registry,
        )
        self.step_failures = self._counter(
            "step_failures", "Ticks and polls that ended in an unexpected error", "step"
        )
        self.missed_windows = self._counter("missed_windows", "Ticks without a usable window")
        self.answers = self._counter("answers", "Answers of engines to pushes", "result")
        self.guardrails = self._counter(
            "guardrails", "Weights changed by a guardrail", "task_class", "guardrail"
        )
        self._trust = self._gauge("model_trust_ratio", "Say of the model over the rule")
        self._cost = self._gauge(
            "estimated_cost_ticks",
            "Estimated cost so far, fading, in ticks in which all value is lost",
            "of",
        )
        self._drifts = self._counter(
            "drifts", "Classes whose residuals drifted", "task_class", "detector"
        )
        self._retrain = self._gauge("retrain_asked", "1 while a retrain is asked for")
        self.store_failures = self._counter("store_failures", "Writes that the store refused")
        self.champion_failures = self._counter(
            "champion_failures", "Failed look-ups and loads of the champion"
        )
        self.engines = self._gauge("engines", "Connected engines")
        self._mode = self._gauge("mode", "1 for the mode in force", "mode")
        self._version = self._gauge("snapshot_version", "Newest published version")
        self._issued = self._gauge("snapshot_issued_unix_seconds", "When it was published")
        self._model = self._gauge("model_info", "1 for the model version in force", "version")
        self._weight = self._gauge("class_weight", "Published weight", "task_class")
        self._rule_share = self._gauge(
            "class_rule_share", "The rule's share, before the residual", "task_class"
        )
        self._residual = self._gauge(
            "class_residual", "The model's residual, in log-odds", "task_class"
        )
        self._on_trial = self._gauge(
            "canary_running", "1 while two versions are compared", "kind", "challenger", "champion"
        )
        self._pairs = self._gauge("canary_pairs", "Pairs of blocks compared so far")
        self._difference = self._gauge(
            "canary_loss_difference", "Mean over the pairs, challenger less champion; NaN: none yet"
        )
        self._canaries = self._gauge("canary_engines", "Engines that run another version now")
        self._blocks = self._counter("canary_blocks", "Blocks that ended", "result")
        self._outcomes = self._counter("canary_outcomes", "Contests that ended", "kind", "outcome")
        for result in ("counted", "void"):
            self._blocks.labels(result)
        for step in ("tick", "champion", "canary"):
            self.step_failures.labels(step)
        for result in ("ack", "nack", "stale"):
            self.answers.labels(result)

    def published(self, snapshot: Snapshot, plan: Plan) -> None:
        """Show what has just been published; what did not contribute disappears."""
        self._version.set(snapshot.version)
        self._issued.set(snapshot.issued_at_unix_s)
        for mode in Mode:
            self._mode.labels(mode.value).set(mode is snapshot.mode)
        self._model.clear()
        if snapshot.model_version is not None:
            self._model.labels(snapshot.model_version).set(1)
        self._rule_share.clear()
        self._residual.clear()
        for decision in plan.classes:
            self._weight.labels(decision.task_class).set(decision.weight)
            if decision.rule_share is not None:
                self._rule_share.labels(decision.task_class).set(decision.rule_share)
            if decision.residual is not None:
                self._residual.labels(decision.task_class).set(decision.residual)

    def guarded(self, plan: Plan, ruling: Ruling) -> None:
        """Count the guardrails that a tick's plan met, and show what they go by."""
        self._trust.set(0.0 if plan.mode is Mode.RULE else ruling.trust)
        self._cost.labels("played").set(ruling.course.ledger.played)
        self._cost.labels("rule").set(ruling.course.ledger.rule)
        for decision in plan.classes:
            for guardrail in decision.guardrails:
                self.guardrails.labels(decision.task_class, guardrail).inc()

    def drifted(self, drift: Drift) -> None:
        """Show what has become of the model's residuals."""
        self._retrain.set(drift.retrain is not None)
        for task_class, detector in drift.found:
            self._drifts.labels(task_class, detector).inc()

    def on_trial(self, contest: Contest, trial: Trial, engines: int) -> None:
        """Show the contest under way."""
        self._on_trial.clear()
        self._on_trial.labels(contest.kind, contest.challenger, contest.champion).set(1)
        self._pairs.set(trial.pairs)
        difference = trial.mean_difference
        self._difference.set(math.nan if difference is None else difference)
        self._canaries.set(engines)

    def no_trial(self) -> None:
        """Show that none is; the figures of the last one stay."""
        self._on_trial.clear()
        self._canaries.set(0)

    def block_ended(self, *, counts: bool) -> None:
        """Count a block."""
        self._blocks.labels("counted" if counts else "void").inc()

    def trial_ended(self, contest: Contest, outcome: Outcome) -> None:
        """Count an outcome."""
        self._outcomes.labels(contest.kind, outcome).inc()

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"{_PREFIX}_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"{_PREFIX}_{name}", text, labels, registry=self.registry)


class MetricsServer:
    """/metrics over HTTP, on threads of its own.

    Raises:
        AddressInUse: the address can't be bound.
    """

    def __init__(self, address: str, registry: CollectorRegistry) -> None:
        host, _, port = address.rpartition(":")
        try:
            server, self._thread = start_http_server(int(port), host.strip("[]"), registry)
        except OSError as error:
            raise AddressInUse(address) from error
        self._server = server
        self.address = f"{host}:{server.server_port}"

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
