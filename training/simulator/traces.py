"""Recorded arrivals, by path.

Two formats, told apart by the file's name:

    .csv            columns TIMESTAMP (ISO 8601), ContextTokens, GeneratedTokens: the Azure
                    public data set (P. Patel et al., "Splitwise", ISCA 2024)
    .jsonl, .json   a line is an object with timestamp (ms), input_length, output_length

One bad line refuses the whole file: a trace with holes is another trace.

Shapes: N requests.
"""

import csv
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from models.classes import TaskClass
from training.errors import BadFile
from training.simulator.lengths import LONGEST_TOKENS, whole_tokens
from training.simulator.workload import Seconds, Tokens, Workload

_CSV_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_JSON_KEYS = ("timestamp", "input_length", "output_length")


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Requests as they were recorded.

    Attributes:
        arrival_s: [N] after the first of them, ascending.
        prompt_tokens: [N].
        output_tokens: [N].
        start_unix_s: when the first one came; None: the recording does not say.
    """

    arrival_s: Seconds
    prompt_tokens: Tokens
    output_tokens: Tokens
    start_unix_s: float | None = None

    def __len__(self) -> int:
        """Number of requests N."""
        return len(self.arrival_s)


def read_trace(path: Path) -> Trace:
    """Read a file of either format.

    Raises:
        BadFile: it can't be read, or holds something that is no request; names the line.
    """
    rows = {".csv": _csv_rows, ".jsonl": _json_rows, ".json": _json_rows}.get(path.suffix.lower())
    if rows is None:
        raise BadFile(path, f"a trace ends in .csv, .jsonl or .json, not in {path.suffix!r}")
    at_s: list[float] = []
    prompts: list[int] = []
    outputs: list[int] = []
    for line, (time_s, prompt, output) in _parsed(path, rows):
        if at_s and time_s < at_s[-1]:
            raise BadFile(path, "it arrived before the line above; sort the file", line=line)
        at_s.append(time_s)
        prompts.append(prompt)
        outputs.append(output)
    if not at_s:
        raise BadFile(path, "it holds no request")
    return Trace(
        arrival_s=np.array(at_s) - at_s[0],
        prompt_tokens=np.array(prompts, dtype=np.int32),
        output_tokens=np.array(outputs, dtype=np.int32),
        start_unix_s=at_s[0] if path.suffix.lower() == ".csv" else None,
    )


def workload_from_traces(
    recorded: Sequence[tuple[TaskClass, Trace]],
    *,
    time_scale: float = 1.0,
    token_scale: float = 1.0,
) -> Workload:
    """Put traces side by side, each as one class. Dated ones keep their distance in time.

    Args:
        recorded: a class may have several traces.
        time_scale: factor on all times; 0.5 doubles the load.
        token_scale: factor on all lengths, for an engine of another size.

    Raises:
        ValueError: a scale is not positive.
    """
    for name, scale in (("time_scale", time_scale), ("token_scale", token_scale)):
        if not (math.isfinite(scale) and scale > 0):
            raise ValueError(f"{name} must be positive, got {scale}")
    classes = tuple({kind.name: kind for kind, _ in recorded}.values())
    dated = [trace.start_unix_s for _, trace in recorded if trace.start_unix_s is not None]
    origin_s = min(dated, default=0.0)
    arrival_s = np.concatenate(
        [
            trace.arrival_s + (0.0 if trace.start_unix_s is None else trace.start_unix_s - origin_s)
            for _, trace in recorded
        ]
    )
    return Workload.in_order(
        arrival_s=arrival_s * time_scale,
        class_index=np.concatenate(
            [np.full(len(trace), classes.index(kind)) for kind, trace in recorded]
        ),
        prompt_tokens=_scaled([trace.prompt_tokens for _, trace in recorded], token_scale),
        output_tokens=_scaled([trace.output_tokens for _, trace in recorded], token_scale),
        classes=classes,
    )


_Request = tuple[float, int, int]


def _parsed(path: Path, rows: Any) -> Iterator[tuple[int, _Request]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            yield from rows(path, file)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadFile(path, f"it can't be read: {error}") from error


def _csv_rows(path: Path, file: Iterator[str]) -> Iterator[tuple[int, _Request]]:
    reader = csv.DictReader(file)
    missing = [name for name in _CSV_COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise BadFile(path, f"the first line names no column {', '.join(missing)}", line=1)
    for row in reader:
        line = reader.line_num
        if None in row or None in row.values():
            raise BadFile(path, "it has more or fewer fields than the first line", line=line)
        time, prompt, output = (row[name] for name in _CSV_COLUMNS)
        yield (
            line,
            (
                _unix_s(path, line, time),
                _tokens(path, line, "ContextTokens", prompt),
                _tokens(path, line, "GeneratedTokens", output),
            ),
        )


def _json_rows(path: Path, file: Iterator[str]) -> Iterator[tuple[int, _Request]]:
    for line, text in enumerate(file, 1):
        if not text.strip():
            continue
        try:
            entry = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadFile(path, f"it is no JSON: {error}", line=line) from error
        missing = [key for key in _JSON_KEYS if not isinstance(entry, dict) or key not in entry]
        if missing:
            raise BadFile(path, f"there is no {', '.join(missing)}", line=line)
        time_ms, prompt, output = (entry[key] for key in _JSON_KEYS)
        yield (
            line,
            (
                _number(path, line, "timestamp", time_ms) / 1000,
                _tokens(path, line, "input_length", prompt),
                _tokens(path, line, "output_length", output),
            ),
        )


def _unix_s(path: Path, line: int, text: str) -> float:
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise BadFile(path, f"TIMESTAMP is no time: {text!r}", line=line) from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _number(path: Path, line: int, name: str, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise BadFile(path, f"{name} must be a number from 0 on, got {value!r}", line=line)
    return number


def _tokens(path: Path, line: int, name: str, value: Any) -> int:
    number = _number(path, line, name, value)
    if not (number.is_integer() and 1 <= number <= LONGEST_TOKENS):
        raise BadFile(
            path,
            f"{name} must be a whole number from 1 to {LONGEST_TOKENS}, got {value!r}",
            line=line,
        )
    return int(number)


def _scaled(columns: Sequence[Tokens], scale: float) -> Tokens:
    return whole_tokens(np.concatenate(columns) * scale)
