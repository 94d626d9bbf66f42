import pytest

from benchmarks.client import Answer, Replay
from benchmarks.plan import Arrival
from benchmarks.results import meets_slo, summarise
from models.classes import Slo, TaskClass


def _answer(
    task_class: str, ttft_s: float | None, e2e_s: float | None, failure: str | None = None
) -> Answer:
    return Answer(Arrival(0.0, task_class, 10, 5), ttft_s, e2e_s, 5 if e2e_s else 0, failure)


VIP = TaskClass("vip", Slo(ttft_s=1.0), value=10)
FREE = TaskClass("free", Slo(ttft_s=2.0, tpot_s=0.5, e2e_s=4.0), value=1)


def test_goodput_counts_the_value_of_requests_that_met_their_slo() -> None:
    run = Replay(
        (
            _answer("vip", 0.5, 1.0),
            _answer("vip", 1.5, 2.0),
            _answer("free", 1.0, 2.0),
            _answer("free", None, None, "gone"),
        ),
        span_s=4.0,
    )
    result = summarise([run], [VIP, FREE])
    assert result.goodput_value_per_s == pytest.approx((10 + 1) / 4)
    assert result.goodput_requests_per_s == pytest.approx(2 / 4)
    assert result.tokens_per_s == pytest.approx(3 * 15 / 4)
    assert result.failed == 1
    assert result.classes["vip"].slo_attainment == pytest.approx(0.5)
    assert result.classes["vip"].longest_wait_s == pytest.approx(1.5)


def test_replays_of_one_policy_are_pooled() -> None:
    run = Replay((_answer("vip", 0.5, 1.0),), span_s=2.0)
    assert summarise([run, run], [VIP]).classes["vip"].n == 2
    assert summarise([run, run], [VIP]).goodput_value_per_s == pytest.approx(5.0)


def test_a_class_without_answers_has_unknown_figures_not_zeroes() -> None:
    result = summarise([Replay((), span_s=1.0)], [VIP]).classes["vip"]
    assert result.n == 0
    assert result.ttft_p99_s is None
    assert result.slo_attainment is None


def test_each_objective_alone_can_be_missed() -> None:
    assert meets_slo(_answer("free", 2.0, 4.0), FREE.slo)
    assert not meets_slo(_answer("free", 2.1, 3.0), FREE.slo)
    assert not meets_slo(_answer("free", 1.0, 4.1), FREE.slo)
    assert not meets_slo(_answer("free", 1.0, 3.1), Slo(ttft_s=2, tpot_s=0.5))
    assert not meets_slo(_answer("free", 1.0, 1.5, "reset"), FREE.slo)
    assert not meets_slo(_answer("free", None, None), FREE.slo)


def test_nothing_to_summarise_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing was replayed"):
        summarise([], [VIP])
