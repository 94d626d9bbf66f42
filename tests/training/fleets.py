"""Fleets and workloads to simulate."""

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from models.classes import LatePolicy, Slo, TaskClass, Tier
from training.simulator.model import Balancer, Discipline, EngineModel, Fleet, Preemption, Shaping
from training.simulator.workload import Workload

CLASSES = (
    TaskClass("vip", Slo(ttft_s=1.0, tpot_s=0.05), value=8.0, tier=Tier.P0),
    TaskClass("chat", Slo(ttft_s=2.0, tpot_s=0.1, e2e_s=20.0), value=2.0, late=LatePolicy.DEMOTE),
    TaskClass("batch", Slo(ttft_s=20.0), tier=Tier.P2, late=LatePolicy.DEMOTE, max_wait_s=40.0),
)
ENGINE = EngineModel(
    base_s=0.02,
    prefill_s_per_token=1e-4,
    decode_s_per_sequence=1e-3,
    kv_s_per_token=1e-6,
    slots=8,
    step_tokens=256,
    kv_blocks=120,
)
TICK_S = 5.0


def workload_of(
    requests: int, rate_per_s: float, seed: int, classes: tuple[TaskClass, ...] = CLASSES
) -> Workload:
    """Poisson arrivals of prompts around 150 and outputs around 30 tokens."""
    rng = np.random.default_rng(seed)
    return Workload(
        arrival_s=np.cumsum(rng.exponential(1 / rate_per_s, requests)),
        class_index=rng.integers(0, len(classes), requests).astype(np.int32),
        prompt_tokens=1 + rng.poisson(rng.choice([40, 150, 400], requests)).astype(np.int32),
        output_tokens=1 + rng.poisson(rng.choice([5, 30, 80], requests)).astype(np.int32),
        classes=classes,
    )


def constant(weights: list[float], ticks: int) -> NDArray[np.float64]:
    """The same weights in each tick: [T, C]."""
    return np.tile(np.array(weights), (ticks, 1))


engine_models = st.builds(
    EngineModel,
    base_s=st.sampled_from([0.01, 0.05]),
    prefill_s_per_token=st.sampled_from([0.0, 1e-4, 1e-3, 3e-3]),
    decode_s_per_sequence=st.sampled_from([0.0, 1e-3]),
    kv_s_per_token=st.sampled_from([0.0, 1e-5]),
    slots=st.sampled_from([1, 2, 3, 5, 9]),
    step_tokens=st.sampled_from([16, 64, 300, 300]),
    kv_blocks=st.sampled_from([16, 24, 60, 1000]),
    block_tokens=st.sampled_from([8, 16]),
    chunk_tokens=st.sampled_from([0, 0, 20, 64]),
    longest_tokens=st.sampled_from([0, 122]),
    chunk_context_s=st.sampled_from([0.0, 1e-6]),
)
fleets = st.builds(
    Fleet,
    engine=engine_models,
    engines=st.sampled_from([1, 1, 1, 2, 3]),
    balancer=st.sampled_from(Balancer),
    discipline=st.sampled_from(Discipline),
    shaping=st.sampled_from([*Shaping, Shaping.SHAPED, Shaping.SHAPED]),
    declares_output=st.booleans(),
    tick_s=st.sampled_from([0.7, 2.0]),
    preemption=st.none()
    | st.just(Preemption())
    | st.builds(
        Preemption,
        patience_ratio=st.sampled_from([0.1, 0.5]),
        min_run_s=st.sampled_from([0.0, 0.0, 0.3]),
        max_preemptions=st.sampled_from([1, 2]),
        recompute_share=st.sampled_from([0.01, 0.5]),
    ),
)


@st.composite
def workloads(draw: st.DrawFn, most_requests: int = 60) -> Workload:
    """Small ones in which every request fits into the smallest engine: 16 blocks of 8 tokens.

    Many requests come at once. All but the sizes is drawn from a seed: that is fast.
    """
    requests = draw(st.integers(0, most_requests) | st.just(most_requests))
    kinds = draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return Workload(
        arrival_s=np.cumsum(rng.choice([0.0, 0.01, 0.13, 1.0], requests, p=[0.5, 0.3, 0.15, 0.05])),
        class_index=rng.integers(0, kinds, requests).astype(np.int32),
        prompt_tokens=rng.integers(1, rng.choice([20, 81]), requests).astype(np.int32),
        output_tokens=rng.integers(1, rng.choice([5, 41]), requests).astype(np.int32),
        classes=tuple(_class(rng, number) for number in range(kinds)),
    )


def _class(rng: np.random.Generator, number: int) -> TaskClass:
    return TaskClass(
        f"class-{number}",
        Slo(
            ttft_s=float(rng.choice([0.3, 1.0, 5.0])),
            tpot_s=_one_of(rng, [None, 0.03, 0.1, 0.1]),
            e2e_s=_one_of(rng, [None, 1.0, 10.0]),
        ),
        value=float(rng.choice([0.5, 1.0, 9.0])),
        late=list(LatePolicy)[rng.integers(2)],
        max_wait_s=_one_of(rng, [None, 0.2, 3.0]),
        tier=list(Tier)[rng.choice(3, p=[0.4, 0.3, 0.3])],
    )


def _one_of(rng: np.random.Generator, bounds_s: list[float | None]) -> float | None:
    return bounds_s[rng.integers(len(bounds_s))]


def weight_rows(seed: int, ticks: int, classes: int) -> NDArray[np.float64]:
    """[T, C]; weights differ within a tick, as who of equals gets an odd token is left open."""
    rng = np.random.default_rng(seed)
    return np.array(
        [rng.permutation([0.01, 0.1, 0.25, 0.5, 1.0, 3.0, 7.0])[:classes] for _ in range(ticks)]
    )


seeds = st.integers(0, 2**32 - 1)
