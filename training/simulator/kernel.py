"""The event loop of a fleet: arrivals, steps and ticks in the order of time.

At equal times a tick ends before a request arrives, and a request arrives before a step
begins; of engines the first goes first. So a run is determined by its inputs alone, and
a run in two parts is the same as one in one.
"""

from collections.abc import Callable

import numpy as np

from training.simulator.compiled import cached, compiled, source_revision
from training.simulator.disciplines import append, oldest_arrival_s, turn_late
from training.simulator.scene import Float, Measurement, Scene
from training.simulator.step import run_step

_ARRIVED = int(Measurement.ARRIVED)
_PROMPT_TOKENS = int(Measurement.PROMPT_TOKENS)
_WAITING = int(Measurement.WAITING)
_RUNNING = int(Measurement.RUNNING)
_PAST_SLO = int(Measurement.WAITING_PAST_SLO)
_OLDEST_WAIT_S = int(Measurement.OLDEST_WAIT_S)


@compiled
def _run_tick(scene: Scene, weights: Float, tick: int, end_s: float) -> None:
    """All events before ``end_s``."""
    cursor, work = scene.cursor[0], scene.work
    while True:
        e = _next_engine(scene)
        ready_s = scene.engines[e].ready_s
        arrives_s = work[cursor.arrival].arrived_s if cursor.arrival < len(work) else np.inf
        if min(arrives_s, ready_s) >= end_s:
            return
        if arrives_s <= ready_s:
            _arrive(scene, cursor.arrival, tick)
            cursor.arrival += 1
        else:
            run_step(scene, e, weights, tick, ready_s)


@compiled
def _next_engine(scene: Scene) -> int:
    best = 0
    for e in range(1, len(scene.engines)):
        if scene.engines[e].ready_s < scene.engines[best].ready_s:
            best = e
    return best


@compiled
def _arrive(scene: Scene, r: int, tick: int) -> None:
    e, arrival = _balance(scene), scene.work[r]
    append(scene, e, r)
    scene.series[tick, arrival.kind, _ARRIVED] += 1
    scene.series[tick, arrival.kind, _PROMPT_TOKENS] += arrival.prompt_tokens
    if np.isinf(scene.engines[e].ready_s):
        scene.engines[e].ready_s = arrival.arrived_s


@compiled
def _balance(scene: Scene) -> int:
    """The engine that the balancer sends the next request to."""
    engines, cursor = scene.engines, scene.cursor[0]
    if not scene.rules[0].least_loaded:
        e = cursor.engine
        cursor.engine = (e + 1) % len(engines)
        return e
    best, least = 0, engines[0].waiting + engines[0].running
    for e in range(1, len(engines)):
        load = engines[e].waiting + engines[e].running
        if load < least:
            best, least = e, load
    return best


@compiled
def _read_gauges(scene: Scene, tick: int, now_s: float) -> None:
    for c in range(len(scene.kinds)):
        oldest_s, gauges = now_s, scene.series[tick, c]
        for e in range(len(scene.engines)):
            turn_late(scene, e, c, now_s)
            queue = scene.queues[e, c]
            gauges[_WAITING] += queue.waiting
            gauges[_RUNNING] += queue.running
            gauges[_PAST_SLO] += queue.past_slo
            oldest_s = min(oldest_s, oldest_arrival_s(scene, e, c))
        gauges[_OLDEST_WAIT_S] = now_s - oldest_s


def _entry_point(revision: int) -> Callable[[Scene, Float], int]:
    # What a closure refers to is part of its key on disk: so a change in any function that
    # this one calls is seen, which numba by itself would miss.
    def advance(scene: Scene, weights: Float) -> int:
        for tick in range(len(weights)):
            end_s = (scene.cursor[0].tick + 1) * scene.rules[0].tick_s
            _run_tick(scene, weights[tick], tick, end_s)
            _read_gauges(scene, tick, end_s)
            scene.cursor[0].tick += 1
        return revision

    return cached(advance)


_advance = _entry_point(source_revision())


def advance(scene: Scene, weights: Float) -> None:
    """Run on for as many ticks as ``weights`` [T, C] has rows; the scene's arrays change."""
    _advance(scene, weights)
