import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane.step_time import StepTimeStats
from models.classes import Slo, TaskClass
from models.window import Signal, Window
from training.errors import BadFile, NotEnoughSteps
from training.simulator.calibration import Calibration
from training.simulator.model import EngineModel
from training.simulator.online import OnlineCalibration, OnlineTraffic
from training.simulator.step_fit import StepSamples, StepSums, fit_steps

TRUE = np.array([4e-3, 6e-4, 1.2e-3, 3e-7, 2e-7])
ENGINE = EngineModel(*TRUE[:4].tolist(), slots=32, step_tokens=256, kv_blocks=2000, chunk_tokens=64)
START = Calibration(ENGINE, origin="test")


def loads(rng: np.random.Generator, steps: int) -> np.ndarray:
    """As an engine's: decodes, prompts, both; contexts of some hundred tokens."""
    prefill = rng.choice([0, 0, 64, 128, 200, 256], steps)
    decoding = np.where(
        prefill == 0, 1 + rng.integers(32, size=steps), rng.integers(33, size=steps)
    )
    kv_tokens = decoding * rng.integers(20, 900, steps) + prefill
    context = prefill * rng.integers(0, 2000, steps)
    return np.column_stack((np.ones(steps), prefill, decoding, kv_tokens, context)).astype(float)


def noisy(
    x: np.ndarray, truth: np.ndarray, deviation: float, rng: np.random.Generator
) -> np.ndarray:
    noise = np.exp(deviation * rng.standard_normal(len(x)) - deviation**2 / 2)
    return x @ truth * noise


def test_exact_steps_give_the_exact_coefficients() -> None:
    x = loads(np.random.default_rng(1), 400)
    assert fit_steps(StepSamples(x @ TRUE, x)) == pytest.approx(TRUE, rel=1e-6)


def test_noise_does_not_pull_the_coefficients_down() -> None:
    rng = np.random.default_rng(2)
    x = loads(rng, 20_000)
    found = fit_steps(StepSamples(noisy(x, TRUE, 0.15, rng), x))
    assert (x @ found).sum() == pytest.approx((x @ TRUE).sum(), rel=0.02)
    assert found == pytest.approx(TRUE, rel=0.1)


def test_pauses_of_the_machine_change_little() -> None:
    rng = np.random.default_rng(3)
    x = loads(rng, 5000)
    elapsed_s = noisy(x, TRUE, 0.05, rng)
    elapsed_s[rng.random(5000) < 0.03] += 0.5
    samples = StepSamples(elapsed_s, x)
    assert fit_steps(samples) == pytest.approx(TRUE, rel=0.15)


def test_the_chunk_context_term_is_next_to_nothing_where_the_steps_do_not_ask_for_it() -> None:
    rng = np.random.default_rng(4)
    x = loads(rng, 3000)
    found = fit_steps(StepSamples(noisy(x, np.append(TRUE[:4], 0.0), 0.1, rng), x))
    assert found[4] * x[:, 4].sum() < 0.01 * (x @ found).sum()


@settings(max_examples=30, deadline=None)
@given(
    truth=st.tuples(*[st.floats(0, 1e-2)] * 5).filter(lambda each: each[0] > 1e-5),
    seed=st.integers(0, 1000),
)
def test_coefficients_are_never_negative_and_predict_noiseless_steps(
    truth: tuple[float, ...], seed: int
) -> None:
    x = loads(np.random.default_rng(seed), 200)
    samples = StepSamples(x @ np.array(truth), x)
    found = fit_steps(samples)
    assert (found >= 0).all()
    assert samples.error_ratio(found) < 0.02


def test_steps_that_cannot_be_fitted_are_refused() -> None:
    x = loads(np.random.default_rng(1), 40)
    with pytest.raises(NotEnoughSteps, match="29 steps"):
        StepSamples(x[:29] @ TRUE, x[:29])
    with pytest.raises(ValueError, match="positive"):
        StepSamples(np.zeros(40), x)


def test_a_calibration_survives_its_file(tmp_path: Path) -> None:
    calibration = replace(START, steps=7, step_error_ratio=0.05)
    calibration.save(tmp_path / "c.json")
    assert Calibration.load(tmp_path / "c.json") == calibration


def test_the_hash_is_of_the_values_and_not_of_how_they_are_written(tmp_path: Path) -> None:
    START.save(tmp_path / "c.json")
    text = (tmp_path / "c.json").read_text()
    other = text.replace("0.004,", "4.000e-3,").replace("0.0006,", "6E-4,")
    assert other != text
    (tmp_path / "d.json").write_text(json.dumps(json.loads(other), indent=None, sort_keys=True))
    assert Calibration.load(tmp_path / "d.json").hash == START.hash
    assert replace(START, origin="elsewhere", steps=9).hash == START.hash
    whole = replace(START, engine=replace(ENGINE, client_overhead_s=0))
    assert whole.hash == START.hash


@pytest.mark.parametrize("name", EngineModel.__slots__)
def test_every_number_of_the_engine_changes_the_hash(name: str) -> None:
    value = getattr(ENGINE, name)
    more = value + 1 if isinstance(value, int) else math.nextafter(value, 1.0)
    assert replace(START, engine=replace(ENGINE, **{name: more})).hash != START.hash


def changed(**changes: object) -> Callable[[dict[str, object]], object]:
    return lambda content: content | changes


def engine_with(**changes: object) -> Callable[[dict[str, object]], object]:
    def change(content: dict[str, object]) -> object:
        engine = content["engine"]
        assert isinstance(engine, dict)
        return content | {"engine": engine | changes}

    return change


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (changed(format="something else"), "format"),
        (changed(engine=None), "exactly"),
        (changed(steps=-1), "steps"),
        (changed(steps="many"), "steps"),
        (changed(step_error_ratio="small"), "step_error_ratio"),
        (engine_with(base_s=-1e-3), "base_s"),
        (engine_with(base_s=float("nan")), "base_s"),
        (engine_with(base_s=None), "base_s"),
        (engine_with(base_s=True), "base_s"),
        (engine_with(slots=1.5), "slots"),
        (engine_with(slots=0), "slots"),
        (engine_with(turbo=1), "exactly"),
        (engine_with(base_s=5e-3), "hash"),
        (lambda _content: [], "format"),
    ],
)
def test_a_file_that_is_no_calibration_is_refused_with_the_reason(
    tmp_path: Path, change: Callable[[dict[str, object]], object], complaint: str
) -> None:
    path = tmp_path / "c.json"
    START.save(path)
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(BadFile, match=complaint):
        Calibration.load(path)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xff", b"[" * 100_000])
def test_a_file_that_is_no_json_is_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "c.json").write_bytes(text)
    with pytest.raises(BadFile, match="can't be read"):
        Calibration.load(tmp_path / "c.json")
    with pytest.raises(BadFile, match="can't be read"):
        Calibration.load(tmp_path / "absent.json")


class Engine:
    """Runs steps of a true speed and reports as the plugin does."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.stats = StepTimeStats()

    def run(self, steps: int, *, slower: float, deviation: float = 0.1) -> StepSums:
        x = loads(self.rng, steps)
        truth = np.append(TRUE[:4] * slower, 0.0)
        for row, elapsed_s in zip(x, noisy(x, truth, deviation, self.rng), strict=True):
            self.stats.add(*row[1:4].astype(int).tolist(), float(elapsed_s))
        self.stats.fit()
        sums = self.stats.sums()
        assert sums is not None
        return StepSums.reported(sums.steps, sums.gram, sums.moment)


def error_ratio(calibration: Calibration, slower: float) -> float:
    x = loads(np.random.default_rng(99), 2000)[:, :4]
    times_s = x @ TRUE[:4] * slower
    return float(np.mean(np.abs(x @ calibration.coefficients[:4] / times_s - 1)))


def test_online_is_the_start_until_steps_are_reported() -> None:
    online = OnlineCalibration(START)
    assert online.calibration == START
    online.report("e1", Engine(1).run(500, slower=2.0), now_s=0.0)
    assert online.calibration == START, "these steps may be as old as the engine"


def test_online_follows_a_drift_of_the_service_rate_within_a_few_half_lives() -> None:
    online, engine = OnlineCalibration(START, half_life_s=10.0), Engine(2)
    now_s = 0.0
    online.report("e1", engine.run(1, slower=1.0), now_s)
    for slower in (1.0, 1.3, 1.3, 1.6, 1.6, 0.8, 0.8, 0.8):
        for _ in range(20):
            now_s += 1.0
            online.report("e1", engine.run(25, slower=slower), now_s)
    assert error_ratio(online.calibration, 0.8) < 0.05
    assert online.calibration.hash != START.hash


def test_online_learns_what_the_start_got_wrong_and_keeps_the_sizes() -> None:
    wrong = START.with_coefficients(START.coefficients * [1, 3, 0.5, 0, 1], "a guess")
    online, engine = OnlineCalibration(wrong), Engine(3)
    online.report("e1", engine.run(1, slower=1.0), 0.0)
    online.report("e1", engine.run(8000, slower=1.0), 60.0)
    assert error_ratio(wrong, 1.0) > 0.4
    assert error_ratio(online.calibration, 1.0) < 0.05
    assert online.calibration.engine.slots == ENGINE.slots


def test_noise_does_not_make_engines_seem_faster() -> None:
    online, engine = OnlineCalibration(START), Engine(4)
    online.report("e1", engine.run(1, slower=1.0), 0.0)
    online.report("e1", engine.run(20_000, slower=1.0, deviation=0.2), 60.0)
    x = loads(np.random.default_rng(5), 2000)[:, :4]
    predicted_s, times_s = x @ online.calibration.coefficients[:4], x @ TRUE[:4]
    assert predicted_s.sum() == pytest.approx(times_s.sum(), rel=0.02)


def test_what_the_steps_cannot_tell_apart_keeps_its_proportions() -> None:
    """All steps alike, at twice the time: every coefficient doubles."""
    online, stats = OnlineCalibration(START), StepTimeStats()
    time_s = float(np.array([1, 0, 8, 4000]) @ TRUE[:4]) * 2
    sums = []
    for _ in range(2):
        for _ in range(2000):
            stats.add(0, 8, 4000, time_s)
        total = stats.sums()
        assert total is not None
        sums.append(StepSums.reported(total.steps, total.gram, total.moment))
    online.report("e1", sums[0], 0.0)
    online.report("e1", sums[1], 1.0)
    assert online.calibration.coefficients == pytest.approx(2 * START.coefficients, rel=1e-3)


def test_the_chunk_context_term_goes_with_the_engines_speed() -> None:
    start = Calibration(replace(ENGINE, chunk_context_s=1e-8), origin="test")
    online, engine = OnlineCalibration(start), Engine(6)
    online.report("e1", engine.run(1, slower=1.0), 0.0)
    online.report("e1", engine.run(5000, slower=1.5), 1.0)
    assert online.calibration.engine.chunk_context_s == pytest.approx(1.5e-8, rel=0.05)


def test_an_engine_that_starts_anew_neither_spikes_nor_counts_backwards() -> None:
    online = OnlineCalibration(START)
    engine = Engine(7)
    online.report("e1", engine.run(3000, slower=1.0), 0.0)
    online.report("e1", engine.run(3000, slower=1.0), 1.0)
    online.report("e1", Engine(8).run(1000, slower=1.0), 2.0)
    assert error_ratio(online.calibration, 1.0) < 0.04


def test_engines_count_together_and_one_that_is_gone_is_forgotten() -> None:
    online, first, second = OnlineCalibration(START), Engine(9), Engine(10)
    online.report("e1", first.run(1, slower=1.0), 0.0)
    online.report("e2", second.run(1, slower=1.0), 0.0)
    online.report("e1", first.run(4000, slower=1.0), 1.0)
    online.report("e2", second.run(4000, slower=2.0), 1.0)
    assert 0.05 < error_ratio(online.calibration, 1.0) < 0.9
    online.forget("e2")
    before = online.calibration
    online.report("e2", Engine(11).run(4000, slower=9.0), 1.0)
    assert online.calibration == before


@pytest.mark.parametrize(
    ("gram", "moment"),
    [((1.0,) * 9, (1.0,) * 4), ((1.0,) * 10, (1.0,) * 3), ((1.0,) * 9 + (math.nan,), (1.0,) * 4)],
)
def test_a_report_of_other_numbers_is_refused(
    gram: tuple[float, ...], moment: tuple[float, ...]
) -> None:
    with pytest.raises(ValueError, match=r"10"):
        StepSums.reported(5, gram, moment)


A, B = TaskClass("a", Slo(ttft_s=1.0)), TaskClass("b", Slo(ttft_s=2.0))


def window(end_unix_s: float, per_s: float, prompt: float, *, b_known: bool = True) -> Window:
    b_per_s = 1.0 if b_known else math.nan
    rows = {
        Signal.ARRIVALS_PER_S: (per_s, b_per_s),
        Signal.PROMPT_TOKENS_PER_S: (per_s * prompt, 50.0),
        Signal.FINISHED_PER_S: (per_s, 0.0),
        Signal.GENERATION_TOKENS_PER_S: (per_s * 10, 0.0),
    }
    signals = {
        signal: np.repeat(np.array(rows.get(signal, (0.0, 0.0)))[:, None], 12, axis=1)
        for signal in Signal
    }
    return Window(end_unix_s, 5.0, ("a", "b"), signals)


def test_traffic_counts_each_step_of_overlapping_windows_once() -> None:
    traffic = OnlineTraffic((A, B), half_life_s=1e9)
    traffic.observe(window(1000.0, 2.0, 100.0))
    traffic.observe(window(1005.0, 8.0, 100.0))
    assert traffic.rates_per_s == pytest.approx([(12 * 2 + 8) / 13, 1.0])


def test_traffic_forgets_and_follows_rates_and_lengths() -> None:
    traffic = OnlineTraffic((A, B), half_life_s=60.0)
    assert traffic.traffic == ()
    for tick in range(200):
        late = tick >= 100
        traffic.observe(window(5.0 * tick, 6.0 if late else 2.0, 300.0 if late else 100.0))
    a, b = traffic.traffic
    assert a.share == pytest.approx(6.0, rel=0.02)
    assert a.lengths.mean_tokens == pytest.approx((300.0, 10.0), rel=0.02)
    assert b.lengths.mean_tokens == pytest.approx((50.0, 64.0)), "nothing of b was generated"


def test_unknown_steps_are_not_steps_without_traffic() -> None:
    traffic = OnlineTraffic((A, B))
    traffic.observe(window(1000.0, 2.0, 100.0))
    traffic.observe(window(1060.0, 2.0, 100.0, b_known=False))
    assert traffic.rates_per_s == pytest.approx([2.0, 1.0])
    with pytest.raises(ValueError, match="the window holds"):
        OnlineTraffic((B, A)).observe(window(1000.0, 2.0, 100.0))
