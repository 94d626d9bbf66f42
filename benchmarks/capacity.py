"""How much of a mix an engine can serve, measured by keeping it saturated."""

from collections.abc import Mapping

from benchmarks.client import Replay, replay
from benchmarks.errors import EngineRefused
from benchmarks.plan import TrafficClass, simultaneous_arrivals

_WARM_UP_REQUESTS = 8


async def measure_capacity_requests_per_s(
    traffic: Mapping[str, TrafficClass], *, url: str, model: str, requests: int, seed: int
) -> float:
    """Send about ``requests`` of the mix at once and return how many it served per second.

    Raises:
        EngineRefused: a request failed.
    """
    await _saturate(traffic, _WARM_UP_REQUESTS, url=url, model=model, seed=(seed, 0))
    run = await _saturate(traffic, requests, url=url, model=model, seed=(seed, 1))
    return len(run.answers) / run.span_s


async def _saturate(
    traffic: Mapping[str, TrafficClass], count: int, *, url: str, model: str, seed: tuple[int, int]
) -> Replay:
    plan = simultaneous_arrivals(traffic, count, seed=seed)
    run = await replay(plan, url=url, model=model, seed=seed)
    failures = {answer.failure for answer in run.answers if answer.failure is not None}
    if failures:
        raise EngineRefused(
            f"the engine failed the capacity measurement: {min(failures)}",
            fix="read the engine's log",
        )
    return run
