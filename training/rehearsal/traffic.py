"""How the fleet's own classes ask, out of its history.

Shapes: C classes, T steps.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from models.classes import TaskClass
from models.window import Signal, Window, known
from training.simulator.lengths import Independent, Lognormal
from training.simulator.model import EngineModel
from training.simulator.replay import LENGTH_CV, window_lengths
from training.simulator.traffic import ClassTraffic
from training.simulator.workload import Workload

LEAST_SHARE = 0.01
"""Of all requests: a class that was silent still exists, and may ask tomorrow."""


def own_traffic(
    windows: Sequence[Window], classes: Sequence[TaskClass], engine: EngineModel
) -> tuple[ClassTraffic, ...]:
    """Each class's part of the requests and its mean lengths, over all windows.

    Raises:
        ValueError: the classes are not the windows', in their order.
    """
    whole = joined(windows)
    whole.require_classes([one.name for one in classes])
    arrivals = whole.signals[Signal.ARRIVALS_PER_S]  # [C, T]
    asked = np.where(known(arrivals), arrivals, 0.0).sum(axis=1)  # [C]
    total = float(asked.sum())
    share = asked / total if total > 0 else np.ones(len(classes))  # [C]
    return tuple(
        ClassTraffic(one, max(own, LEAST_SHARE), _within(lengths.mean_tokens, engine))
        for one, own, lengths in zip(classes, share.tolist(), window_lengths(whole), strict=True)
    )


def fitting(workload: Workload, engine: EngineModel) -> Workload:
    """The same requests, none of them longer than an engine can hold."""
    most = engine.most_tokens
    prompts = np.minimum(workload.prompt_tokens, max(1, most - 1))
    outputs = np.minimum(workload.output_tokens, np.maximum(1, most - prompts))
    return replace(workload, prompt_tokens=prompts, output_tokens=outputs)


def joined(windows: Sequence[Window]) -> Window:
    """All steps in one window; the time between them is left out."""
    first, last = windows[0], windows[-1]
    return Window(
        end_unix_s=last.end_unix_s,
        step_s=first.step_s,
        task_classes=first.task_classes,
        signals={
            signal: np.concatenate([one.signals[signal] for one in windows], axis=1)
            for signal in Signal
        },
    )


def _within(mean_tokens: tuple[float, float], engine: EngineModel) -> Independent:
    """Lengths with these means of prompt and answer, half of the longest sequence each at most."""
    most = max(1, engine.most_tokens // 2)
    prompt, output = (Lognormal(min(mean, most), LENGTH_CV, most) for mean in mean_tokens)
    return Independent(prompt, output)
