"""The metrics of one engine as a whole: what the plugin does beyond ordering requests."""

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge

from dataplane.breaker import BreakerState
from dataplane.preemption import Refusal, Shortage
from dataplane.series import GrowingCount, Merge
from dataplane.state import Counts, EngineState, SteeringState
from dataplane.weights import Tier

_TIERS = tuple(tier.name.lower() for tier in Tier)
_TRIPS = tuple(state.name.lower() for state in (BreakerState.DEGRADED, BreakerState.OPEN))
_READERS: Mapping[str, Callable[[SteeringState], Counts]] = {
    "breaker_trips": lambda steering: steering.breaker_trips,
    "breaker_refusals": lambda steering: steering.breaker_refusals,
    "kv_held_back": lambda steering: steering.held_back,
    "weight_preemptions": lambda steering: steering.displaced,
    "weight_preemptions_refused": lambda steering: steering.displacements_refused,
}


class EngineSeries:
    """All series exist, with zeroes, from the start."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._counts = {
            "breaker_trips": self._counters(
                "breaker_trips", "Times the breaker went to a state", "state", _TRIPS
            ),
            "breaker_refusals": self._counters(
                "breaker_refusals", "Times the breaker did not admit a request", "tier", _TIERS
            ),
            "kv_held_back": self._counters(
                "kv_held_back", "Times the KV reserve began to hold a tier back", "tier", _TIERS
            ),
            "weight_preemptions": self._counters(
                "weight_preemptions", "Requests preempted by weight", "shortage", tuple(Shortage)
            ),
            "weight_preemptions_refused": self._counters(
                "weight_preemptions_refused",
                "Requests that needed a place and preempted nobody",
                "reason",
                tuple(Refusal),
            ),
        }
        self._capped_steps = self._count(
            "capped_steps", "Steps with fewer prompt tokens than they could have held"
        )
        self._withheld_tokens = self._count(
            "withheld_prompt_tokens", "Prompt tokens that capped steps did not hold"
        )
        self._breaker = self._gauge(
            "breaker_state", "0 closed, 1 degraded, 2 open, 3 half open", "livemax"
        )
        reserved = self._gauge(
            "kv_reserved_blocks", "KV blocks kept from a tier", "livesum", ("tier",)
        )
        self._reserved = {tier: reserved.labels(tier) for tier in _TIERS}
        self._coefficient = self._gauge(
            "step_time_coefficient_seconds",
            "Of the model of a step's time, per unit of the term",
            "livemostrecent",
            ("term",),
        )

    def write(self, state: EngineState) -> None:
        """Write what has changed."""
        steering = state.steering
        for name, counters in self._counts.items():
            for label, count in _READERS[name](steering).items():
                counters[label].write(count)
        self._capped_steps.write(steering.capped_steps)
        self._withheld_tokens.write(steering.withheld_tokens)
        self._breaker.set(state.breaker)
        for tier, blocks in steering.reserved_blocks.items():
            self._reserved[tier].set(blocks)
        for term, seconds in steering.coefficients.items():
            self._coefficient.labels(term).set(seconds)

    def _counters(
        self, name: str, meaning: str, label: str, values: tuple[str, ...]
    ) -> dict[str, GrowingCount]:
        family = Counter(f"trimtab_{name}", meaning, (label,), registry=self._registry)
        return {value: GrowingCount(family.labels(value)) for value in values}

    def _count(self, name: str, meaning: str) -> GrowingCount:
        return GrowingCount(Counter(f"trimtab_{name}", meaning, registry=self._registry))

    def _gauge(self, name: str, meaning: str, merge: Merge, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(
            f"trimtab_{name}", meaning, labels, registry=self._registry, multiprocess_mode=merge
        )
