"""Candidates on a local Ray cluster, with the results of one thread here."""

from collections.abc import Iterator

import numpy as np
import pytest
import ray
from fleets import CLASSES, ENGINE, constant, workload_of

from training.simulator.model import Fleet
from training.simulator.on_ray import evaluate_on_ray
from training.simulator.rollout import evaluate, simulate


@pytest.fixture
def cluster() -> Iterator[None]:
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=100 * 2**20,
    )
    yield
    ray.shutdown()


@pytest.mark.system
@pytest.mark.usefixtures("cluster")
def test_candidates_come_out_the_same_on_ray() -> None:
    fleet, workload = Fleet(ENGINE), workload_of(400, 6.0, 11)
    state = simulate(fleet, workload, constant([1.0, 1.0, 1.0], 4)).state
    candidates = np.random.default_rng(2).uniform(0.1, 5.0, (7, 6, len(CLASSES)))
    here = evaluate(fleet, workload, candidates, state)
    there = evaluate_on_ray(fleet, workload, candidates, state, tasks=2)
    assert len(here) == len(there) == len(candidates)
    for one, other in zip(here, there, strict=True):
        assert one.series.tobytes() == other.series.tobytes()
        assert one.first == other.first
        for own, others in zip(one.state, other.state, strict=True):
            assert own.tobytes() == others.tobytes()
