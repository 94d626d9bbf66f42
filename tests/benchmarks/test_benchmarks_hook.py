"""The measurements of the hook, and the engine in this process that they run on."""

import json
import logging
from collections.abc import Iterator

import numpy as np
import pytest
from rich.console import Console
from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from benchmarks.hook.batches import Batch, BatchRun
from benchmarks.hook.decisions import dispatch_us, index_rate, snapshot_cost
from benchmarks.hook.pairs import compare, take_turns
from benchmarks.hook.queueing import measure_queueing
from benchmarks.hook.report import as_json, as_tables
from benchmarks.hook.run import CLASSES, HookResults
from benchmarks.hook.steps import measure_batch
from benchmarks.hook.tables import weight_table
from benchmarks.stack.inprocess import (
    InProcessEngine,
    RequestMaker,
    SchedulerSize,
    running_scheduler,
)
from benchmarks.stack.process import free_port
from dataplane.scheduler import TrimtabScheduler

SMALL = SchedulerSize(max_num_seqs=2, max_num_batched_tokens=32, max_model_len=128, blocks=64)


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No control plane, and no lines of vLLM about each scheduler."""
    monkeypatch.setenv("TRIMTAB_CONTROL_PLANE", f"127.0.0.1:{free_port()}")
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def outputs_of(
    kind: type[AsyncScheduler], size: SchedulerSize, *, prompt_tokens: int, max_tokens: int
) -> tuple[list[int], int]:
    """The tokens of one request, and the turns of the engine until it ended."""
    with running_scheduler(kind, size) as scheduler:
        engine = InProcessEngine(scheduler, in_flight=size.in_flight)
        maker = RequestMaker(size)
        engine.add([maker.make("r", prompt_token_ids=[1] * prompt_tokens, max_tokens=max_tokens)])
        tokens: list[int] = []
        turns = 0
        while not engine.is_idle:
            for output in engine.step().outputs:
                tokens += output.new_token_ids
            turns += 1
    return tokens, turns


@pytest.mark.parametrize("kind", [AsyncScheduler, TrimtabScheduler])
@pytest.mark.parametrize("in_flight", [1, 2])
def test_the_made_up_model_gives_a_token_once_the_prompt_is_through(
    kind: type[AsyncScheduler], in_flight: int
) -> None:
    size = SchedulerSize(
        max_num_seqs=2,
        max_num_batched_tokens=32,
        max_model_len=128,
        blocks=64,
        in_flight=in_flight,
    )
    tokens, turns = outputs_of(kind, size, prompt_tokens=70, max_tokens=5)
    assert tokens == [70, 71, 72, 73, 74]
    # Three chunks of the prompt, the last of which gives the first token; one more turn for
    # each step in flight, and one to tell the workers that the request ended.
    assert 7 <= turns <= 7 + in_flight + 1


def test_turns_alternate_who_comes_first() -> None:
    order: list[str] = []

    def one(name: str, seconds: float) -> float:
        order.append(name)
        return seconds

    stock_s, plugin_s = take_turns(lambda: one("stock", 1.0), lambda: one("plugin", 2.0), 3)
    assert order == ["stock", "plugin", "plugin", "stock", "stock", "plugin"]
    assert (stock_s.tolist(), plugin_s.tolist()) == ([1.0] * 3, [2.0] * 3)


def test_the_interval_holds_the_true_ratio_and_depends_on_the_seed_alone() -> None:
    rng = np.random.default_rng(1)
    stock_s = rng.gamma(20.0, 1e-4, 600)
    plugin_s = 1.1 * rng.gamma(20.0, 1e-4, 600)
    comparison = compare(stock_s, plugin_s, seed=1)
    low, high = comparison.ratio_ci
    assert low < 1.1 < high
    assert low <= comparison.ratio <= high
    assert comparison == compare(stock_s, plugin_s, seed=1)
    assert comparison.ratio_ci != compare(stock_s, plugin_s, seed=2).ratio_ci


@pytest.mark.parametrize("pairs", [1, 3, 40])
def test_few_pairs_can_be_compared_too(pairs: int) -> None:
    comparison = compare(np.full(pairs, 2e-6), np.full(pairs, 3e-6), seed=1)
    assert comparison.stock_us == pytest.approx(2.0)
    assert comparison.ratio_ci == pytest.approx((1.5, 1.5))


def test_tables_of_successive_versions_turn_the_weights_round() -> None:
    first, second = (weight_table(4, version=version) for version in (1, 2))
    assert first.policy("class-1").weight == second.policy("class-0").weight
    assert len({policy.weight for policy in first.policies.values()}) == 4


@pytest.mark.parametrize("kind", [AsyncScheduler, TrimtabScheduler])
def test_a_batch_keeps_the_slots_and_the_queue_full(kind: type[AsyncScheduler]) -> None:
    # A slot is taken for four tokens, and for as many steps as results come late.
    for outputs, dispatched in ((None, 0), (4, pytest.approx(8 * 8 / 5, abs=2))):
        batch = Batch("b", running=8, waiting=6, classes=3, output_tokens=outputs)
        size = SchedulerSize(max_num_seqs=8, blocks=256)
        with running_scheduler(kind, size) as scheduler:
            run = BatchRun(batch, InProcessEngine(scheduler), RequestMaker(size), seed=1)
            run.fill()
            for _ in range(8):
                run.step()
            assert run.dispatched == dispatched
            assert len(scheduler.requests) == batch.running + batch.waiting


def test_the_results_have_the_form_of_result_files() -> None:
    results = HookResults(
        steps=[measure_batch(Batch("decode", running=4, waiting=4), pairs=4, seed=1)],
        queueing=measure_queueing("priority", waiting=40, aborted=10, seed=1),
        dispatch_us={classes: dispatch_us(classes=classes, waiting=100) for classes in CLASSES},
        index=index_rate(classes=16, rounds=5),
        snapshots=[snapshot_cost(classes=classes, rounds=3) for classes in (4, 300)],
    )
    written = json.loads(json.dumps(as_json(results)))
    assert {"running", "waiting", "classes", "stock_us", "plugin_us", "ratio"} <= set(
        written["rows"][0]
    )
    for number in ("dispatch_us", "index_per_s", "snapshot_apply_ms"):
        assert written[number] > 0
    # More classes than the protocol carries are never decoded: unknown, and not 0.
    assert [cost["decode_ms"] is None for cost in written["snapshots"]] == [False, True]
    assert [row["operation"] for row in written["queueing"]] == [
        "one arrives",
        "one leaves",
        "10 leave at once",
    ]
    console = Console(width=80)
    with console.capture() as capture:
        console.print(as_tables(results))
    assert "…" not in capture.get()
