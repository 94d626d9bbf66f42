"""Windows out of a real Prometheus that scrapes a real exporter."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from engine_exporter import CLASSES, EngineMetrics

from benchmarks.stack.prometheus import PrometheusServer
from controlplane.errors import StaleWindow, TelemetryError
from controlplane.telemetry.history import fetch_history
from controlplane.telemetry.source import PrometheusSource
from controlplane.telemetry.window import fetch_window
from models.window import Signal, Window

pytestmark = pytest.mark.system

PATIENCE_S = 60.0


@dataclass
class Fleet:
    """Two engines and the Prometheus that scrapes them."""

    engines: list[EngineMetrics]
    source: PrometheusSource

    def window(self, staleness_s: float = 20.0) -> Window:
        return fetch_window(self.source, CLASSES, end_unix_s=time.time(), staleness_s=staleness_s)


@contextmanager
def _fleet(folder: Path, *, scrape_interval_s: int) -> Iterator[Fleet]:
    engines = [EngineMetrics(), EngineMetrics()]
    targets = [f"127.0.0.1:{engine.port}" for engine in engines]
    prometheus = PrometheusServer(folder, targets, scrape_interval_s=scrape_interval_s)
    source = PrometheusSource(prometheus.url, 5.0, float(scrape_interval_s))
    fleet = Fleet(engines, source)
    try:
        with prometheus.child:
            prometheus.wait_ready()
            yield fleet
    finally:
        source.close()
        for engine in fleet.engines:
            engine.close()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with _fleet(tmp_path, scrape_interval_s=1) as running:
        yield running


@pytest.fixture
def far_from_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Kathmandu")  # UTC+5:45
    time.tzset()
    assert os.environ["TZ"]
    yield
    monkeypatch.undo()
    time.tzset()


def _drive(fleet: Fleet, for_s: float, *, per_s: float = 4.0) -> float:
    """Each engine serves vip requests, every other one late: how many a second, of all engines."""
    start_s = time.monotonic()
    count = 0
    while time.monotonic() < start_s + for_s:
        for engine in fleet.engines:
            engine.serve_one("vip", "late" if count % 2 else "met")
        count += 1
        time.sleep(1 / per_s)
    return count * len(fleet.engines) / (time.monotonic() - start_s)


def _until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.3)


def _last(window: Window, signal: Signal, row: int = 0) -> float:
    return float(window.signals[signal][row, -1])


@pytest.mark.usefixtures("far_from_utc")
def test_window_says_what_the_engines_did_in_any_time_zone(fleet: Fleet) -> None:
    first, second = fleet.engines
    for engine, wait_s in ((first, 2.0), (second, 7.0)):
        engine.waiting.labels("batch").set(3)
        engine.past.labels("batch").set(1)
        engine.oldest.labels("batch").set(wait_s)
    first.finished.labels("vip", "aborted").inc(50)
    served_per_s = _drive(fleet, 10.0)
    window = fleet.window()
    assert abs(window.end_unix_s - time.time()) < 10
    arrivals = _last(window, Signal.ARRIVALS_PER_S)
    assert arrivals == pytest.approx(served_per_s, rel=0.3)
    assert _last(window, Signal.PROMPT_TOKENS_PER_S) == pytest.approx(100 * arrivals, rel=0.01)
    assert _last(window, Signal.GENERATION_TOKENS_PER_S) == pytest.approx(10 * arrivals, rel=0.01)
    assert _last(window, Signal.FINISHED_PER_S) == pytest.approx(arrivals, rel=0.01)
    assert _last(window, Signal.VIOLATIONS_PER_S) == pytest.approx(arrivals / 2, rel=0.2)
    assert _last(window, Signal.TTFT_MEAN_S) == pytest.approx(0.25)
    assert _last(window, Signal.WAITING, 1) == 6  # summed over the engines
    assert _last(window, Signal.WAITING_PAST_SLO, 1) == 2
    assert _last(window, Signal.OLDEST_WAIT_S, 1) == 7.0  # the longest of the engines
    # An idle class has rates of zero, no mean, and nothing that sticks.
    assert _last(window, Signal.ARRIVALS_PER_S, 1) == 0.0
    assert _last(window, Signal.FINISHED_PER_S, 1) == 0.0
    assert np.isnan(_last(window, Signal.TTFT_MEAN_S, 1))
    # Before the engines were there, nothing is known, which is not zero.
    assert np.isnan(window.signals[Signal.ARRIVALS_PER_S][:, 0]).all()
    history = fetch_history(
        fleet.source,
        CLASSES,
        start_unix_s=window.end_unix_s - 60,
        end_unix_s=window.end_unix_s,
        step_s=5.0,
    )
    for signal in Signal:
        assert np.array_equal(history.signals[signal], window.signals[signal], equal_nan=True), (
            signal
        )


def test_restarted_engine_gives_neither_a_negative_rate_nor_a_spike(fleet: Fleet) -> None:
    fleet.engines[0].arrived.labels("vip").inc(100_000)  # a long life before the restart
    _drive(fleet, 6.0)
    old = fleet.engines[0]
    old.close()
    fleet.engines[0] = EngineMetrics(old.port)
    served_per_s = _drive(fleet, 8.0)
    rates = fleet.window().signals[Signal.ARRIVALS_PER_S][0]
    known = rates[np.isfinite(rates)]
    assert known.size
    assert (known >= 0).all()
    assert (known < 20).all()
    assert known[-1] > served_per_s / 2


def test_dead_engines_become_stale_and_one_that_is_left_carries_on(fleet: Fleet) -> None:
    for engine in fleet.engines:
        engine.waiting.labels("vip").set(5)
    _until(lambda: _known(fleet) and _last(fleet.window(), Signal.WAITING) == 10)
    fleet.engines.pop().close()
    _until(lambda: _last(fleet.window(), Signal.WAITING) == 5)
    fleet.engines.pop().close()
    time.sleep(4.0)
    with pytest.raises(StaleWindow, match="the limit is 3 s"):
        fleet.window(staleness_s=3.0)


def test_slow_scrape_still_gives_a_window(tmp_path: Path) -> None:
    scrape_interval_s = 8
    with _fleet(tmp_path, scrape_interval_s=scrape_interval_s) as fleet:
        _until(lambda: _known(fleet))
        # A rate looks back over three scrapes. Until all three of each engine saw traffic, it is
        # one of a start, and low: so drive on until that is past, whenever the scrapes fall.
        served_per_s = _drive(fleet, 5.0 * scrape_interval_s)
        window = fleet.window()
    assert _last(window, Signal.ARRIVALS_PER_S) == pytest.approx(served_per_s, rel=0.3)
    assert _last(window, Signal.WAITING) == 0.0


def _known(fleet: Fleet) -> bool:
    try:
        return bool(np.isfinite(_last(fleet.window(), Signal.WAITING)))
    except TelemetryError:
        return False
