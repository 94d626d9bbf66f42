"""Fleets and workloads to simulate."""

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from models.classes import LatePolicy, Slo, TaskClass, Tier
from training.simulator.model import Balancer, Discipline, EngineModel, Fleet, Shaping
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
    prefill_s_per_token=st.sampled_from([0.0, 1e-4, 1e-3]),
    decode_s_per_sequence=st.sampled_from([0.0, 1e-3]),
    kv_s_per_token=st.sampled_from([0.0, 1e-5]),
    slots=st.sampled_from([1, 2, 5, 9]),
    step_tokens=st.sampled_from([16, 64, 300]),
    kv_blocks=st.sampled_from([16, 24, 60, 1000]),
    block_tokens=st.sampled_from([8, 16]),
    chunk_tokens=st.sampled_from([0, 0, 20, 64]),
    chunk_context_s=st.sampled_from([0.0, 1e-6]),
)
fleets = st.builds(
    Fleet,
    engine=engine_models,
    engines=st.sampled_from([1, 1, 1, 2, 3]),
    balancer=st.sampled_from(Balancer),
    discipline=st.sampled_from(Discipline),
    shaping=st.sampled_from(Shaping),
    declares_output=st.booleans(),
    tick_s=st.sampled_from([0.7, 2.0]),
)
classes = st.lists(
    st.builds(
        lambda ttft_s, tpot_s, e2e_s, value, late, max_wait_s, tier: TaskClass(
            "k",
            Slo(ttft_s, tpot_s, e2e_s),
            value=value,
            late=late,
            max_wait_s=max_wait_s,
            tier=tier,
        ),
        ttft_s=st.sampled_from([0.3, 1.0, 5.0]),
        tpot_s=st.none() | st.sampled_from([0.02, 0.1]),
        e2e_s=st.none() | st.sampled_from([1.0, 10.0]),
        value=st.sampled_from([0.5, 1.0, 9.0]),
        late=st.sampled_from(LatePolicy),
        max_wait_s=st.none() | st.sampled_from([0.2, 3.0]),
        tier=st.sampled_from(Tier),
    ),
    min_size=1,
    max_size=4,
)


@st.composite
def workloads(draw: st.DrawFn, most_requests: int = 30) -> Workload:
    """Small ones in which every request fits into the smallest engine: 16 blocks of 8 tokens."""
    drawn = draw(classes)
    kinds = tuple(
        TaskClass(
            f"class-{number}",
            one.slo,
            value=one.value,
            late=one.late,
            max_wait_s=one.max_wait_s,
            tier=one.tier,
        )
        for number, one in enumerate(drawn)
    )
    rows = draw(
        st.lists(
            st.tuples(
                st.sampled_from([0.0, 0.0, 0.01, 0.13, 1.0]),
                st.integers(0, len(kinds) - 1),
                st.integers(1, 80),
                st.integers(1, 40),
            ),
            max_size=most_requests,
        )
    )
    gaps_s, numbers, prompts, outputs = zip(*rows, strict=True) if rows else ((), (), (), ())
    return Workload(
        arrival_s=np.cumsum(np.array(gaps_s, dtype=np.float64)),
        class_index=np.array(numbers, dtype=np.int32),
        prompt_tokens=np.array(prompts, dtype=np.int32),
        output_tokens=np.array(outputs, dtype=np.int32),
        classes=kinds,
    )


@st.composite
def weight_rows(draw: st.DrawFn, count: int, *, ticks: int = 12) -> NDArray[np.float64]:
    """Weights that differ within a tick: who of two equals gets an odd token is left open."""
    row = st.lists(
        st.sampled_from([0.01, 0.1, 0.25, 0.5, 1.0, 3.0, 7.0]),
        min_size=count,
        max_size=count,
        unique=True,
    )
    return np.array(draw(st.lists(row, min_size=ticks, max_size=ticks)))
