from pathlib import Path

import numpy as np
import pytest

from models.classes import Slo, TaskClass
from models.window import Signal, Window
from training.errors import BadFile
from training.simulator.lengths import Independent, Uniform
from training.simulator.replay import replay_window
from training.simulator.traces import read_trace, workload_from_traces

CODE, CHAT = TaskClass("code", Slo(ttft_s=1.0)), TaskClass("chat", Slo(ttft_s=2.0))

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
CSV = HEADER + (
    "2024-03-01 23:59:59.5000000,4000,10\n"
    "2024-03-02 00:00:00.2500000,300,8\r\n"
    "2024-03-02 00:00:00.2500000,20,1\n"
)
JSON_LINES = (
    '{"timestamp": 1000, "input_length": 600, "output_length": 50, "hash_ids": [1]}\n'
    "\n"
    '{"timestamp": 4000.5, "input_length": 70, "output_length": 5}\n'
)


def written(folder: Path, text: str | bytes, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_azure_columns_are_read_over_midnight(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, CSV))
    assert trace.arrival_s == pytest.approx([0.0, 0.75, 0.75])
    assert trace.prompt_tokens.tolist() == [4000, 300, 20]
    assert trace.output_tokens.tolist() == [10, 8, 1]
    assert trace.start_unix_s == 1709337599.5


def test_further_columns_in_any_order_and_time_zones_are_taken(tmp_path: Path) -> None:
    text = "GeneratedTokens,Tenant,ContextTokens,TIMESTAMP\n7,x,9,2024-03-01 12:00:00+02:00\n"
    trace = read_trace(written(tmp_path, text))
    assert (trace.prompt_tokens[0], trace.output_tokens[0]) == (9, 7)
    assert trace.start_unix_s == 1709287200.0


def test_json_lines_are_read_in_milliseconds(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, JSON_LINES, "trace.jsonl"))
    assert trace.arrival_s == pytest.approx([0.0, 3.0005])
    assert trace.prompt_tokens.tolist() == [600, 70]
    assert trace.start_unix_s is None


@pytest.mark.parametrize(
    ("text", "line", "complaint"),
    [
        ("TIMESTAMP,ContextTokens\n2024-03-01,3\n", 1, "GeneratedTokens"),
        (HEADER + "2024-03-01 00:00:00,5,1\nyesterday,5,1\n", 3, "yesterday"),
        (HEADER + "2024-03-01 00:00:00,nan,1\n", 2, "ContextTokens"),
        (HEADER + "2024-03-01 00:00:00,inf,1\n", 2, "ContextTokens"),
        (HEADER + "2024-03-01 00:00:00,-5,1\n", 2, "ContextTokens"),
        (HEADER + "2024-03-01 00:00:00,5,0\n", 2, "GeneratedTokens"),
        (HEADER + "2024-03-01 00:00:00,5,1.5\n", 2, "GeneratedTokens"),
        (HEADER + "2024-03-01 00:00:00,5,99999999999\n", 2, "GeneratedTokens"),
        (HEADER + "2024-03-01 00:00:00,5\n", 2, "fields"),
        (HEADER + "2024-03-01 00:00:00,5,1,2\n", 2, "fields"),
        (HEADER + "2024-03-01 00:00:01,5,1\n2024-03-01 00:00:00,5,1\n", 3, "before"),
        (HEADER, None, "no request"),
        ("", 1, "TIMESTAMP"),
        (b"\xff\xfe\x00TIMESTAMP", None, "can't be read"),
    ],
)
def test_a_csv_file_that_is_no_trace_is_refused_with_line_and_reason(
    tmp_path: Path, text: str | bytes, line: int | None, complaint: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(BadFile, match=complaint) as caught:
        read_trace(path)
    assert caught.value.line == line
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "line", "complaint"),
    [
        ("not json\n", 1, "JSON"),
        ("[1, 2]\n", 1, "timestamp"),
        ('{"timestamp": 1, "input_length": 2}\n', 1, "output_length"),
        ('{"timestamp": NaN, "input_length": 2, "output_length": 2}\n', 1, "timestamp"),
        ('{"timestamp": -1, "input_length": 2, "output_length": 2}\n', 1, "timestamp"),
        ('{"timestamp": 1, "input_length": true, "output_length": 2}\n', 1, "input_length"),
        ('{"timestamp": 1, "input_length": null, "output_length": 2}\n', 1, "input_length"),
        ('{"timestamp": 1, "input_length": [2], "output_length": 2}\n', 1, "input_length"),
        (JSON_LINES + '{"timestamp": 5, "input_length": 2, "output_length": 2}\n', 4, "before"),
        ("[" * 100_000, 1, "JSON"),
    ],
)
def test_a_json_file_that_is_no_trace_is_refused_with_line_and_reason(
    tmp_path: Path, text: str, line: int, complaint: str
) -> None:
    with pytest.raises(BadFile, match=complaint) as caught:
        read_trace(written(tmp_path, text, "trace.jsonl"))
    assert caught.value.line == line


def test_a_file_that_is_not_there_or_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(BadFile, match="can't be read"):
        read_trace(tmp_path / "absent.csv")
    with pytest.raises(BadFile, match="can't be read"):
        read_trace(tmp_path / "folder.csv")
    with pytest.raises(BadFile, match=r"\.parquet"):
        read_trace(written(tmp_path, CSV, "trace.parquet"))


def test_dated_traces_keep_their_distance_and_undated_ones_begin_with_the_first(
    tmp_path: Path,
) -> None:
    late = HEADER + "2024-03-02 00:00:01.5,50,5\n"
    recorded = [
        (CODE, read_trace(written(tmp_path, CSV))),
        (CHAT, read_trace(written(tmp_path, late, "late.csv"))),
        (CHAT, read_trace(written(tmp_path, JSON_LINES, "t.jsonl"))),
    ]
    load = workload_from_traces(recorded)
    assert load.arrival_s == pytest.approx([0, 0, 0.75, 0.75, 2.0, 3.0005])
    assert load.class_index.tolist() == [0, 1, 0, 0, 1, 1]
    assert load.classes == (CODE, CHAT)


def test_times_and_lengths_can_be_scaled(tmp_path: Path) -> None:
    recorded = [(CODE, read_trace(written(tmp_path, CSV)))]
    load = workload_from_traces(recorded, time_scale=4.0, token_scale=0.1)
    assert load.arrival_s == pytest.approx([0, 3, 3])
    assert load.prompt_tokens.tolist() == [400, 30, 2]
    assert load.output_tokens.tolist() == [1, 1, 1]
    for scale in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="time_scale"):
            workload_from_traces(recorded, time_scale=scale)


def recorded_window(**changes: list[list[float]]) -> Window:
    steps = 400
    rows = {
        Signal.ARRIVALS_PER_S: [[4.0] * 200 + [8.0] * 200, [0.31] * steps],
        Signal.PROMPT_TOKENS_PER_S: [[400.0] * 200 + [800.0] * 200, [310.0] * steps],
        Signal.FINISHED_PER_S: [[5.0] * steps, [0.3] * steps],
        Signal.GENERATION_TOKENS_PER_S: [[100.0] * steps, [24.0] * steps],
    } | {Signal(name): values for name, values in changes.items()}
    signals = {
        signal: np.array(rows.get(signal, np.zeros((2, steps))), dtype=float) for signal in Signal
    }
    return Window(0.0, 5.0, ("code", "chat"), signals)


def test_a_replay_has_the_windows_rates_and_mean_lengths() -> None:
    load = replay_window(recorded_window(), (CODE, CHAT), seed=3)
    code, chat = (load.class_index == index for index in (0, 1))
    assert np.histogram(load.arrival_s[code], [0, 1000, 2000])[0].tolist() == [4000, 8000]
    assert chat.sum() == pytest.approx(620, abs=1)
    assert load.prompt_tokens[code].mean() == pytest.approx(100, rel=0.05)
    assert load.output_tokens[code].mean() == pytest.approx(20, rel=0.05)
    assert load.prompt_tokens[chat].mean() == pytest.approx(1000, rel=0.15)
    assert load.arrival_s[-1] < 2000


def test_a_replay_depends_on_its_seed_alone() -> None:
    window = recorded_window()
    first, again, other = (replay_window(window, (CODE, CHAT), seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first.arrival_s, again.arrival_s)
    assert not np.array_equal(first.arrival_s, other.arrival_s)


def test_an_unmeasured_step_counts_as_the_mean_and_an_unmeasured_class_as_silent() -> None:
    nan = float("nan")
    window = recorded_window(arrivals_per_s=[[2.0] * 100 + [nan] * 300, [nan] * 400])
    load = replay_window(window, (CODE, CHAT), seed=1)
    assert len(load) == pytest.approx(4000, abs=1)
    assert (load.class_index == 0).all()


def test_a_replay_may_bring_its_own_lengths_and_needs_the_windows_classes() -> None:
    own = [Independent(Uniform(3, 3), Uniform(4, 4))] * 2
    load = replay_window(recorded_window(), (CODE, CHAT), seed=1, lengths=own)
    assert set(load.prompt_tokens.tolist()) == {3}
    with pytest.raises(ValueError, match="the window holds"):
        replay_window(recorded_window(), (CHAT, CODE), seed=1)


def test_a_class_without_tokens_gets_the_rules_prior_lengths() -> None:
    window = recorded_window(
        finished_per_s=[[0.0] * 400, [0.0] * 400],
        generation_tokens_per_s=[[0.0] * 400, [0.0] * 400],
    )
    load = replay_window(window, (CODE, CHAT), seed=1)
    assert load.output_tokens.mean() == pytest.approx(64, rel=0.05)
