"""Two recorded traces as two classes: pieces of an hour of production.

One engine gets a random part of the requests, as a balancer gives it, so large that the load is
what was asked for on average; how it goes up and down is the recording's. Weights are tuned on
pieces of the beginning, and compared on pieces of the rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.learning.settings import FIRST_TRAINING_SEED, FLEET, Setting
from models.classes import LatePolicy, Slo, TaskClass
from training.simulator.lengths import Observed
from training.simulator.play import capacity_requests_per_s
from training.simulator.scenario import Scenario
from training.simulator.traces import read_trace, workload_from_traces
from training.simulator.traffic import ClassTraffic
from training.simulator.workload import Workload

REGIME = "azure"
LOAD = 0.7
"""Mean over the recording, of the fleet's capacity for this mix."""
TOKEN_SCALE = 0.25
"""On all lengths: the reference engine is smaller than those that were recorded."""
TRAINING_PART = 0.4
"""Of the recording's time."""

_CODE = TaskClass("code", Slo(ttft_s=3.0), value=3.0)
_CONVERSATION = TaskClass("conversation", Slo(ttft_s=5.0, tpot_s=0.2), value=1.0)
_FILES = ("code.csv", "conv.csv")


@dataclass(frozen=True, slots=True)
class Recorded:
    """Pieces of the traces in a folder. Attributes: folder: with code.csv and conv.csv."""

    folder: Path
    late: LatePolicy
    duration_s: float

    @property
    def regime(self) -> str:
        """One name for all."""
        return REGIME

    @property
    def classes(self) -> tuple[TaskClass, ...]:
        """One for each trace."""
        return tuple(replace(one, late=self.late) for one in (_CODE, _CONVERSATION))

    def scenario(self, seed: int) -> Scenario:
        """A piece that the seed draws, and the part of its requests that come.

        Raises:
            BadFile: a trace can't be read.
        """
        whole = _whole(self.folder)
        rng = np.random.default_rng([seed, 0xA2])
        start_s = rng.uniform(*self._starts_s(seed, float(whole.arrival_s[-1])))
        first, stop = np.searchsorted(whole.arrival_s, (start_s, start_s + self.duration_s))
        ours = first + np.flatnonzero(rng.random(stop - first) < _part_of_requests(self.folder))
        workload = Workload(
            arrival_s=whole.arrival_s[ours] - start_s,
            class_index=whole.class_index[ours],
            prompt_tokens=whole.prompt_tokens[ours],
            output_tokens=whole.output_tokens[ours],
            classes=self.classes,
        )
        return Scenario.steady(REGIME, workload, self.duration_s)

    def _starts_s(self, seed: int, recorded_s: float) -> tuple[float, float]:
        """When pieces may begin."""
        border_s = TRAINING_PART * recorded_s
        if seed >= FIRST_TRAINING_SEED:
            return 0.0, border_s - self.duration_s
        return border_s, recorded_s - self.duration_s


def recorded_settings(folder: Path, duration_s: float) -> Sequence[Setting]:
    """With either late policy; none where the folder lacks the traces."""
    if not all((folder / name).is_file() for name in _FILES):
        return []
    return [Recorded(folder, late, duration_s) for late in LatePolicy]


@cache
def _whole(folder: Path) -> Workload:
    traces = [read_trace(folder / name) for name in _FILES]
    pairs = list(zip((_CODE, _CONVERSATION), traces, strict=True))
    return workload_from_traces(pairs, token_scale=TOKEN_SCALE)


@cache
def _part_of_requests(folder: Path) -> float:
    """How many of all requests make the load."""
    whole = _whole(folder)
    traffic = []
    for index, task_class in enumerate(whole.classes):
        own = whole.class_index == index  # [N]
        lengths = Observed(whole.prompt_tokens[own], whole.output_tokens[own])
        traffic.append(ClassTraffic(task_class, float(own.mean()), lengths))
    recorded_per_s = len(whole) / float(whole.arrival_s[-1])
    return LOAD * capacity_requests_per_s(FLEET, traffic) / recorded_per_s
