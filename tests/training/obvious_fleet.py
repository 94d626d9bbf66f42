"""Several obvious engines behind a balancer, event by event."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from obvious_engine import Engine, Request, request_of
from plugin_terms import table_of

from models.classes import TaskClass
from training.simulator.model import Balancer, Fleet
from training.simulator.scene import Measurement
from training.simulator.workload import Workload


@dataclass
class ObviousRun:
    requests: list[Request]
    series: NDArray[np.float64]


def simulate_obviously(
    fleet: Fleet, workload: Workload, weights: NDArray[np.float64]
) -> ObviousRun:
    requests = [request_of(fleet, workload, number) for number in range(len(workload))]
    series = np.zeros((len(weights), len(workload.classes), len(Measurement)))
    by_id = {one.ticket.request_id: one for one in requests}
    engines = [Engine(fleet, workload.classes, by_id, series) for _ in range(fleet.engines)]
    coming = list(requests)
    for tick, row in enumerate(weights):
        table = table_of(fleet, workload.classes, row)
        end_s = (tick + 1) * fleet.tick_s
        while True:
            engine = min(engines, key=lambda one: one.ready_s)
            arrives_s = coming[0].ticket.arrived_s if coming else math.inf
            if min(arrives_s, engine.ready_s) >= end_s:
                break
            if arrives_s <= engine.ready_s:
                _arrive(coming.pop(0), engines, tick, fleet.balancer)
            else:
                engine.step(table, tick, engine.ready_s)
        _read_gauges(engines, workload.classes, series[tick], end_s)
    return ObviousRun(requests, series)


def _arrive(request: Request, engines: list[Engine], tick: int, balancer: Balancer) -> None:
    engine = engines[request.number % len(engines)]
    if balancer is Balancer.LEAST_LOADED:
        engine = min(engines, key=lambda one: one.load)
    engine.add(request)
    engine.count(request, Measurement.ARRIVED, tick)
    engine.count(request, Measurement.PROMPT_TOKENS, tick, request.ticket.prompt_tokens)
    if math.isinf(engine.ready_s):
        engine.ready_s = request.ticket.arrived_s


def _read_gauges(
    engines: list[Engine],
    classes: tuple[TaskClass, ...],
    gauges: NDArray[np.float64],
    now_s: float,
) -> None:
    for kind, one in enumerate(classes):
        waiting = [
            request.ticket
            for engine in engines
            for request in engine.waiting
            if request.kind == kind
        ]
        gauges[kind, Measurement.WAITING] = len(waiting)
        gauges[kind, Measurement.RUNNING] = sum(
            request.kind == kind for engine in engines for request in engine.running
        )
        gauges[kind, Measurement.WAITING_PAST_SLO] = sum(
            ticket.dispatched_s is None and now_s > ticket.arrived_s + one.slo.ttft_s
            for ticket in waiting
        )
        gauges[kind, Measurement.OLDEST_WAIT_S] = now_s - min(
            [
                oldest_s
                for engine in engines
                if (oldest_s := engine.queue.oldest_arrival_s(one.name)) is not None
            ],
            default=now_s,
        )
