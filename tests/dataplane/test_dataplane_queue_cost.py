"""What an operation costs does not grow with the queue.

A hundred times as many requests wait in the deep queue as in the shallow one, so whatever
is linear in the queue costs about a hundred times as much there. Asserted is a ratio of
medians below 12, of operations timed in turns on the same machine: deep queues do cost a
few times more, as their requests have left the processor's caches.
"""

import random
import statistics
import time
from collections.abc import Callable

import pytest
from shelf import Shelf, policy_of, table_of
from vllm.v1.request import Request

from dataplane.weights import ClassPolicy, Discipline, LatePolicy, WeightTable

SHALLOW, DEEP = 1_000, 100_000
BATCH, ROUNDS = 50, 41
MOST = 12.0

Operation = Callable[[Shelf, list[Request]], None]


def policies(weight: float = 1.0) -> dict[str, ClassPolicy]:
    late = policy_of(weight, ttft_s=1.0, late=LatePolicy.DEMOTE, max_wait_s=1e6)
    return {"a": late, "b": policy_of(2.0, ttft_s=1e5)}


@pytest.fixture(scope="module")
def shelves() -> tuple[Shelf, Shelf]:
    """Two classes, one with all but the newest requests late."""
    filled = []
    for count in (SHALLOW, DEEP):
        shelf = Shelf()
        for index in range(count):
            shelf.add(f"r{index}", "ab"[index % 2], index / count * 10.0)
        filled.append(shelf)
    return filled[0], filled[1]


def pop(shelf: Shelf, taken: list[Request]) -> None:
    taken.append(shelf.queue.pop_request())


def abort(shelf: Shelf, taken: list[Request]) -> None:
    shelf.queue.remove_requests([taken.pop()])


def add(shelf: Shelf, taken: list[Request]) -> None:
    shelf.queue.add_request(taken.pop())


def batch_s(shelf: Shelf, operation: Operation, taken: list[Request]) -> float:
    started_s = time.perf_counter()
    for _ in range(BATCH):
        operation(shelf, taken)
    return time.perf_counter() - started_s


def cost_s(shelf: Shelf, weights: WeightTable, rng: random.Random) -> dict[str, float]:
    """One batch of each, after which the queue holds as many as before."""
    shelf.queue.begin_step(weights, 11.0)
    shelf.queue.peek_request()
    taken: list[Request] = []
    costs = {"pop": batch_s(shelf, pop, taken), "add": batch_s(shelf, add, taken)}
    aborted = [shelf.requests[f"r{rng.randrange(len(shelf.requests))}"] for _ in range(BATCH)]
    costs["abort"] = batch_s(shelf, abort, list(aborted))
    shelf.queue.end_step()
    for request in set(aborted):
        shelf.queue.add_request(request)
    return costs


@pytest.mark.parametrize("discipline", [Discipline.APQ, Discipline.WFQ, Discipline.FCFS])
def test_add_pop_and_abort_cost_the_same_in_a_deep_queue(
    shelves: tuple[Shelf, Shelf], discipline: Discipline
) -> None:
    """Field failure 9: aborting many queued requests is not linear in the queue for each."""
    rng = random.Random(7)
    weights = table_of(discipline, policies())
    rounds = [[cost_s(shelf, weights, rng) for shelf in shelves] for _ in range(ROUNDS)]
    for operation in ("add", "pop", "abort"):
        shallow_s, deep_s = (
            statistics.median(costs[which][operation] for costs in rounds) for which in (0, 1)
        )
        assert deep_s < MOST * shallow_s, operation


def test_a_new_weight_reorders_a_deep_queue_without_touching_it(
    shelves: tuple[Shelf, Shelf],
) -> None:
    def flip_s(shelf: Shelf, weight: float) -> float:
        weights = table_of(Discipline.APQ, policies(weight))
        started_s = time.perf_counter()
        shelf.queue.begin_step(weights, 11.0)
        shelf.queue.peek_request()
        elapsed_s = time.perf_counter() - started_s
        shelf.queue.end_step()
        return elapsed_s

    for shelf in shelves:
        flip_s(shelf, 1.0)
    rounds = [[flip_s(shelf, 1.0 + flip) for shelf in shelves] for flip in range(ROUNDS)]
    shallow_s, deep_s = (statistics.median(costs[which] for costs in rounds) for which in (0, 1))
    assert deep_s < MOST * shallow_s


def test_a_step_costs_nothing_per_class_until_someone_asks_who_is_next() -> None:
    """Without a question no class is looked at: a broken table goes unnoticed."""
    shelf = Shelf()
    shelf.add("r", "chat", 0.0)
    broken = table_of(Discipline.APQ, {})
    object.__setattr__(broken, "policies", None)
    shelf.queue.begin_step(broken, 1.0)
    shelf.queue.end_step()
    assert shelf.barrier.faults == 0
    shelf.queue.begin_step(broken, 1.0)
    assert shelf.queue.peek_request().request_id == "r"
    assert shelf.barrier.faults == 1
