import numpy as np
import pytest

from benchmarks.client import Answer, Replay
from benchmarks.loss import replay_loss
from benchmarks.plan import Arrival
from models.classes import Slo, TaskClass
from models.loss import WORST_CLASS

VIP = TaskClass("vip", Slo(ttft_s=1.0, tpot_s=0.1), value=3.0)
BATCH = TaskClass("batch", Slo(ttft_s=10.0, e2e_s=20.0))


def answer(task_class: str, ttft_s: float | None, e2e_s: float | None, tokens: int = 11) -> Answer:
    return Answer(Arrival(0.0, task_class, 10, 11), ttft_s, e2e_s, tokens)


def test_a_replay_loses_what_its_late_and_its_incomplete_answers_lose() -> None:
    run = Replay(
        (
            answer("vip", 0.5, 1.0),  # in time
            answer("vip", 0.5, 6.0),  # a token each 0.55 s: 5.5 times the objective
            answer("batch", 5.0, None),  # cut off after its first token
            answer("batch", 5.0, 9.0, tokens=1),  # in time, and no pace to speak of
        ),
        span_s=10.0,
    )
    loss = replay_loss(run, (VIP, BATCH))
    assert loss.by_class == pytest.approx([(0.5 + 0.5 * 4.5 / 9) / 2, 0.5])
    assert loss.mean == pytest.approx((3 * 0.75 + 1.0) / 8)
    assert loss.total == pytest.approx(loss.mean + WORST_CLASS * 0.5)


def test_what_failed_is_lost_however_early_it_did() -> None:
    arrival = Arrival(0.0, "vip", 10, 11)
    run = Replay((Answer(arrival, 0.1, 0.2, 2, failure="reset"),), span_s=1.0)
    assert np.array_equal(replay_loss(run, (VIP, BATCH)).by_class, [1.0, np.nan], equal_nan=True)
