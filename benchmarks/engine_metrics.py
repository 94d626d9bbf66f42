"""What an engine's own /metrics says of the plugin, at one moment."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import httpx
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

_TIMEOUT_S = 2.0

# vLLM's name for it now, and in versions before: metrics get new names.
_PREEMPTIONS = ("vllm:num_preemptions_total", "vllm:num_preemptions")


@dataclass(frozen=True, slots=True)
class EngineReading:
    """Per-class gauges and the engine's counters; None or absent: not exported yet.

    Attributes:
        preemptions: since the engine started, all classes.
        recomputed_tokens: likewise: computed, dropped by a preemption, to be computed again.
        snapshots_applied: since the engine started.
    """

    waiting: Mapping[str, float]
    weights: Mapping[str, float]
    snapshot_version: int | None
    snapshot_age_s: float | None
    neutral: bool | None
    snapshots_applied: int | None
    preemptions: int | None
    recomputed_tokens: int | None


def read_engine(url: str) -> EngineReading | None:
    """Scrape ``url``/metrics; None when the engine does not answer."""
    try:
        response = httpx.get(f"{url}/metrics", timeout=_TIMEOUT_S).raise_for_status()
    except httpx.HTTPError:
        return None
    return parse_engine(text_string_to_metric_families(response.text))


def parse_engine(families: Iterable[Metric]) -> EngineReading:
    """Pick the plugin's figures out of scraped metric families."""
    samples = [sample for family in families for sample in family.samples]

    def by_class(name: str) -> dict[str, float]:
        return {
            sample.labels["task_class"]: sample.value for sample in samples if sample.name == name
        }

    def single(name: str, **labels: str) -> float | None:
        found = [
            sample.value
            for sample in samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        return sum(found) if found else None

    neutral = single("trimtab_neutral")
    return EngineReading(
        waiting=by_class("trimtab_waiting_requests"),
        weights=by_class("trimtab_class_weight"),
        snapshot_version=_whole(single("trimtab_snapshot_version")),
        snapshot_age_s=single("trimtab_snapshot_age_seconds"),
        neutral=None if neutral is None else neutral > 0,
        snapshots_applied=_whole(single("trimtab_snapshots_total", result="applied")),
        preemptions=_whole(_first_known(map(single, _PREEMPTIONS))),
        recomputed_tokens=_whole(single("trimtab_recomputed_tokens_total")),
    )


def _first_known(values: Iterable[float | None]) -> float | None:
    """The first value that is there; None: there is none."""
    return next((value for value in values if value is not None), None)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
