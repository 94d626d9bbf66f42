"""What the compiled functions see: rules and workload as arrays of records, and the state.

Shapes: N requests, C classes, T ticks, M measurements.
"""

import math
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.classes import LatePolicy, TaskClass, Tier
from training.simulator.model import Balancer, Discipline, EngineModel, Fleet, Preemption, Shaping
from training.simulator.state import Records, State
from training.simulator.workload import Workload

Float = NDArray[np.float64]

APQ, GCMU, WFQ, EDF, STRICT, FCFS, CP_SCORE = range(7)
_DISCIPLINES = (
    Discipline.APQ,
    Discipline.GCMU,
    Discipline.WFQ,
    Discipline.EDF,
    Discipline.STRICT,
    Discipline.FCFS,
    Discipline.CP_SCORE,
)


P0, P1, P2 = range(3)
_TIERS = (Tier.P0, Tier.P1, Tier.P2)


class Measurement(IntEnum):
    """What is measured per tick and class: the last axis of a run's series.

    Up to ``RECOMPUTED_TOKENS`` sums over the tick, the rest as it is at its end. The
    engine's view: without what clients see on top.
    """

    ARRIVED = 0
    FINISHED = 1
    VIOLATED = 2
    """Finished past an objective."""
    PROMPT_TOKENS = 3
    """Of the requests that arrived."""
    GENERATED_TOKENS = 4
    FIRST_TOKENS = 5
    TTFT_SUM_S = 6
    """Over the requests whose first token came."""
    PREEMPTIONS = 7
    RECOMPUTED_TOKENS = 8
    WAITING = 9
    RUNNING = 10
    WAITING_PAST_SLO = 11
    OLDEST_WAIT_S = 12


_RULES = np.dtype(
    [
        ("discipline", np.int64),
        ("shares", np.int64),
        ("caps", np.int64),
        ("least_loaded", np.int64),
        ("declares_output", np.int64),
        ("slots", np.int64),
        ("step_tokens", np.int64),
        ("chunk_tokens", np.int64),
        ("kv_blocks", np.int64),
        ("block_tokens", np.int64),
        ("longest_blocks", np.int64),
        ("tick_s", np.float64),
        ("base_s", np.float64),
        ("prefill_s_per_token", np.float64),
        ("decode_s_per_sequence", np.float64),
        ("kv_s_per_token", np.float64),
        ("chunk_context_s", np.float64),
        ("preempts", np.int64),
        ("weight_ratio", np.float64),
        ("patience_ratio", np.float64),
        ("min_run_s", np.float64),
        ("max_preemptions", np.int64),
        ("recompute_tokens_per_min", np.float64),
    ]
)
_KIND = np.dtype(
    [
        ("ttft_slo_s", np.float64),
        ("tpot_slo_s", np.float64),
        ("e2e_slo_s", np.float64),
        ("max_wait_s", np.float64),
        ("value", np.float64),
        ("demotes", np.int64),
        ("tier", np.int64),
    ]
)
_ARRIVAL = np.dtype(
    [
        ("arrived_s", np.float64),
        ("kind", np.int64),
        ("prompt_tokens", np.int64),
        ("output_tokens", np.int64),
    ]
)
_ASK = np.dtype(
    [
        ("kind", np.int64),
        ("weight", np.float64),
        ("wanted", np.int64),
        ("share", np.int64),
        ("order", np.int64),
    ]
)
_STANDING = np.dtype(
    [
        ("request", np.int64),  # the head of a class
        ("rank", np.int64),
        ("score", np.float64),  # minus its index
        ("place", np.int64),
        ("weight", np.float64),
    ]
)


class Scene(NamedTuple):
    """All that a compiled function may need.

    Attributes:
        rules: [1] of fleet and engine.
        kinds: [C] the classes; what is no objective and no bound is infinity.
        work: [N] the workload.
        asks: [2, C] room for the demands of one step: by class, and those that are any.
        heads: [C] room for the heads of the classes in an order.
        series: [T, C, M].
    """

    rules: Records
    kinds: Records
    work: Records
    requests: Records
    engines: Records
    queues: Records
    lanes: Records
    slots: Records
    cursor: Records
    asks: Records
    heads: Records
    series: Float


def scene_of(fleet: Fleet, workload: Workload, state: State, ticks: int) -> Scene:
    """The scene of a run of so many ticks; it shares the state's arrays."""
    classes = len(workload.classes)
    return Scene(
        rules_of(fleet),
        _kinds(workload.classes),
        _work(workload),
        *state,
        asks=asks_of(classes),
        heads=np.zeros(classes, dtype=_STANDING).view(np.recarray),
        series=np.zeros((ticks, classes, len(Measurement))),
    )


def asks_of(classes: int) -> Records:
    """Fresh room for the demands of a step: [2, C]."""
    return np.zeros((2, classes), dtype=_ASK).view(np.recarray)


def rules_of(fleet: Fleet) -> Records:
    """Fleet and engine as the kernel wants them: [1]."""
    engine, preemption = fleet.engine, fleet.preemption or Preemption()
    stock = fleet.discipline is Discipline.FCFS or fleet.shaping is Shaping.STOCK
    row = (
        _DISCIPLINES.index(fleet.discipline),
        not stock,
        not stock and fleet.shaping is Shaping.SHAPED,
        fleet.balancer is Balancer.LEAST_LOADED,
        fleet.declares_output,
        engine.slots,
        engine.step_tokens,
        engine.chunk_tokens,
        engine.kv_blocks,
        engine.block_tokens,
        -(-engine.most_tokens // engine.block_tokens),
        fleet.tick_s,
        engine.base_s,
        engine.prefill_s_per_token,
        engine.decode_s_per_sequence,
        engine.kv_s_per_token,
        engine.chunk_context_s,
        fleet.preemption is not None and fleet.discipline is not Discipline.FCFS,
        preemption.weight_ratio,
        preemption.patience_ratio,
        preemption.min_run_s,
        preemption.max_preemptions,
        preemption.recompute_share * _prefill_tokens_per_s(engine) * 60.0,
    )
    return np.array([row], dtype=_RULES).view(np.recarray)


def _prefill_tokens_per_s(engine: EngineModel) -> float:
    """What the engine could prefill at most."""
    return engine.step_tokens / (engine.base_s + engine.prefill_s_per_token * engine.step_tokens)


def _kinds(classes: tuple[TaskClass, ...]) -> Records:
    rows = [
        (
            one.slo.ttft_s,
            _bound(one.slo.tpot_s),
            _bound(one.slo.e2e_s),
            _bound(one.max_wait_s),
            one.value,
            one.late is LatePolicy.DEMOTE,
            _TIERS.index(one.tier),
        )
        for one in classes
    ]
    return np.array(rows, dtype=_KIND).view(np.recarray)


def _work(workload: Workload) -> Records:
    work = np.zeros(len(workload), dtype=_ARRIVAL).view(np.recarray)
    work["arrived_s"] = workload.arrival_s
    work["kind"] = workload.class_index
    work["prompt_tokens"] = workload.prompt_tokens
    work["output_tokens"] = workload.output_tokens
    return work


def _bound(seconds: float | None) -> float:
    return math.inf if seconds is None else seconds
