"""What a Prometheus that misbehaves looks like: a real HTTP server on loopback."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlparse

import numpy as np
import pytest

from controlplane.errors import (
    MalformedAnswer,
    NoEngineMetrics,
    PrometheusRefused,
    PrometheusUnreachable,
    StaleWindow,
)
from controlplane.telemetry.history import MAX_POINTS, fetch_history
from controlplane.telemetry.promql import SAMPLE_TIME, lookback_s, signals_query
from controlplane.telemetry.source import PrometheusSource
from controlplane.telemetry.window import fetch_window
from models.window import STEPS, Signal, Window

NOW_S = 1_700_000_000
Answer = tuple[int, bytes]


@contextmanager
def _answering(answer: Callable[[dict[str, str]], Answer]) -> Iterator[PrometheusSource]:
    """A source whose Prometheus gives ``answer`` to each query's parameters."""

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = parse_qs(urlparse(self.path).query)
            status, body = answer({name: values[0] for name, values in query.items()})
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    source = PrometheusSource(f"http://127.0.0.1:{server.server_port}/", 0.5, 1.0)
    try:
        yield source
    finally:
        source.close()
        server.shutdown()
        server.server_close()


def _matrix(*series: tuple[str, str, list[tuple[float, str]]]) -> Answer:
    result = [
        {"metric": {"task_class": task_class, "signal": signal}, "values": points}
        for task_class, signal, points in series
    ]
    document = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    return 200, json.dumps(document).encode()


def _window(source: PrometheusSource) -> Window:
    return fetch_window(source, ("vip", "batch"), end_unix_s=NOW_S + 0.7, staleness_s=20.0)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((500, b"boom"), PrometheusRefused),
        ((400, b'{"status":"error"}'), PrometheusRefused),
        ((200, b"<html>a proxy's page</html>"), MalformedAnswer),
        ((200, b'{"status":"success"}'), MalformedAnswer),
        ((200, b'{"data":{"result":[{"metric":{}}]}}'), MalformedAnswer),
        ((200, b'{"data":{"result":[{"metric":{},"values":[["x","y"]]}]}}'), MalformedAnswer),
        ((200, b'{"data":{"result":[{"metric":{},"values":[[NaN,"1"]]}]}}'), MalformedAnswer),
        ((200, b'{"data":{"result":[{"metric":{},"values":[[Infinity,"1"]]}]}}'), MalformedAnswer),
        ((200, b'{"data":{"result":[{"metric":{"signal":[]},"values":[]}]}}'), MalformedAnswer),
        ((200, b'{"data":{"result":null}}'), MalformedAnswer),
        ((200, b"[" * 100_000), MalformedAnswer),
        ((200, b"null"), MalformedAnswer),
        ((200, b'{"data":{"result":[]}}'), NoEngineMetrics),
    ],
)
def test_bad_answer_is_told_apart(answer: Answer, error: type[Exception]) -> None:
    with _answering(lambda _: answer) as source, pytest.raises(error):
        _window(source)


def test_answer_that_takes_too_long_is_unreachable() -> None:
    release = threading.Event()

    def wait(_: dict[str, str]) -> Answer:
        release.wait(5.0)
        return 200, b""

    with _answering(wait) as source:
        with pytest.raises(PrometheusUnreachable, match=r"within 0\.5 s"):
            _window(source)
        release.set()


def test_nobody_there_is_unreachable() -> None:
    with pytest.raises(PrometheusUnreachable, match="Connection refused"):
        _window(PrometheusSource("http://127.0.0.1:1", 0.5, 1.0))


def test_points_land_in_their_steps_and_the_rest_is_unknown() -> None:
    answer = _matrix(
        ("vip", "arrivals_per_s", [(NOW_S - 55, "1.5"), (NOW_S, "2.5")]),
        ("vip", "ttft_mean_s", [(NOW_S, "NaN"), (NOW_S - 5, "+Inf")]),
        ("stranger", "arrivals_per_s", [(NOW_S, "9")]),
        ("vip", SAMPLE_TIME, [(NOW_S, str(NOW_S - 1))]),
    )
    with _answering(lambda _: answer) as source:
        window = _window(source)
    arrivals = window.signals[Signal.ARRIVALS_PER_S]
    assert (window.end_unix_s, arrivals.shape) == (NOW_S, (2, STEPS))
    assert (arrivals[0, 0], arrivals[0, -1]) == (1.5, 2.5)
    assert np.isnan(arrivals[0, 1:-1]).all()
    assert np.isnan(arrivals[1]).all()
    assert np.isnan(window.signals[Signal.TTFT_MEAN_S]).all()


def test_old_samples_are_stale_with_both_numbers() -> None:
    answer = _matrix(("vip", SAMPLE_TIME, [(NOW_S, str(NOW_S - 29.3))]))
    with (
        _answering(lambda _: answer) as source,
        pytest.raises(StaleWindow, match=r"30\.0 s old, the limit is 20 s"),
    ):
        _window(source)


def test_one_query_however_many_classes() -> None:
    asked: list[dict[str, str]] = []

    def answer(query: dict[str, str]) -> Answer:
        asked.append(query)
        return _matrix(("c0", SAMPLE_TIME, [(NOW_S, str(NOW_S))]))

    with _answering(answer) as source:
        names = tuple(f"c{number}" for number in range(1000))
        fetch_window(source, names, end_unix_s=NOW_S, staleness_s=20.0)
    assert len(asked) == 1
    assert (asked[0]["start"], asked[0]["end"], asked[0]["step"]) == (
        str(NOW_S - 55),
        str(NOW_S),
        "5",
    )


def test_history_is_split_where_prometheus_would_refuse_it() -> None:
    asked: list[tuple[int, int]] = []

    def answer(query: dict[str, str]) -> Answer:
        start, end = int(query["start"]), int(query["end"])
        asked.append((start, end))
        points = [(start, str(start)), (end, str(end))]
        return _matrix(("vip", "waiting", points), ("vip", SAMPLE_TIME, points))

    steps = 2 * MAX_POINTS + 7
    with _answering(answer) as source:
        history = fetch_history(
            source,
            ("vip",),
            start_unix_s=NOW_S - steps * 5,
            end_unix_s=NOW_S,
            step_s=5.0,
        )
    assert sorted(asked) == asked
    assert all((end - start) / 5 + 1 <= MAX_POINTS for start, end in asked)
    starts_after = [start for start, _ in asked[1:]]
    assert starts_after == [end + 5 for _, end in asked[:-1]]
    waiting = history.signals[Signal.WAITING][0]
    assert waiting.shape == (steps,)
    assert (waiting[0], waiting[-1]) == (NOW_S - (steps - 1) * 5, NOW_S)
    assert np.isfinite(waiting).sum() == 6 - (asked[0][0] == asked[0][1])


@pytest.mark.parametrize(("span_s", "step_s"), [(3.0, 5.0), (60.0, 2.5), (60.0, 0.0)])
def test_history_that_cant_be_cut_is_refused(span_s: float, step_s: float) -> None:
    source = PrometheusSource("http://127.0.0.1:1", 0.5, 1.0)
    with pytest.raises(ValueError, match="can't be cut"):
        fetch_history(
            source, ("vip",), start_unix_s=NOW_S - span_s, end_unix_s=NOW_S, step_s=step_s
        )


@pytest.mark.parametrize(("scrape_s", "expected_s"), [(1.0, 5.0), (5.0, 15.0), (15.0, 45.0)])
def test_rates_look_back_over_three_scrapes(scrape_s: float, expected_s: float) -> None:
    assert lookback_s(5.0, scrape_s) == expected_s
    assert f"[{round(expected_s * 1000)}ms]" in signals_query(5.0, scrape_s)
