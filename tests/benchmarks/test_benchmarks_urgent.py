"""Field failure 1: an urgent request waits although it is urgent, as all slots are taken."""

import asyncio
from pathlib import Path

import pytest

from benchmarks.urgent.run import Round, measure
from benchmarks.urgent.scenario import Contender, bound_s, rounds
from dataplane.config import PreemptionSettings


def test_the_bound_is_made_of_the_settings_of_the_plugin() -> None:
    assert bound_s(0.1) > PreemptionSettings().min_run_s


@pytest.mark.system
def test_failure_1_an_urgent_request_takes_a_slot_from_long_work(tmp_path: Path) -> None:
    started: list[Contender] = []

    async def both() -> list[Round]:
        return [one async for one in measure(tmp_path, rounds(1), seed=1, on_round=started.append)]

    trimtab, stock = asyncio.run(both())
    assert [one.contender for one in (trimtab, stock)] == started == rounds(1)
    # Not the median: under stock, too, one of four finds a slot that happens to come free.
    assert max(trimtab.urgent_ttft_s) < max(stock.urgent_ttft_s)
    assert trimtab.preemptions > 0 == stock.preemptions
