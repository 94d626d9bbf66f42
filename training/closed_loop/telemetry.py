"""What a control plane would read of a simulated fleet: windows out of its series.

Rates are per second of a tick, gauges as they are at its end, a mean TTFT is unknown where no
first token came, and so is everything before the fleet's first tick: what the query of
``controlplane.telemetry`` gives of engines that are scraped within every tick.

Shapes: C classes, M measurements.
"""

from collections.abc import Sequence

import numpy as np

from models.classes import TaskClass
from models.window import STEP_S, STEPS, Signal, Window
from training.simulator.scene import Float, Measurement

_RATES = {
    Signal.ARRIVALS_PER_S: Measurement.ARRIVED,
    Signal.FINISHED_PER_S: Measurement.FINISHED,
    Signal.VIOLATIONS_PER_S: Measurement.VIOLATED,
    Signal.PROMPT_TOKENS_PER_S: Measurement.PROMPT_TOKENS,
    Signal.GENERATION_TOKENS_PER_S: Measurement.GENERATED_TOKENS,
}
_GAUGES = {
    Signal.WAITING: Measurement.WAITING,
    Signal.WAITING_PAST_SLO: Measurement.WAITING_PAST_SLO,
    Signal.OLDEST_WAIT_S: Measurement.OLDEST_WAIT_S,
}
_ROWS = tuple(Signal)
_RATE_ROWS = [_ROWS.index(signal) for signal in _RATES]
_RATE_COLUMNS = [int(column) for column in _RATES.values()]
_GAUGE_ROWS = [_ROWS.index(signal) for signal in _GAUGES]
_GAUGE_COLUMNS = [int(column) for column in _GAUGES.values()]
_TTFT_ROW = _ROWS.index(Signal.TTFT_MEAN_S)


class Telemetry:
    """The signals of a run, filled tick by tick.

    Args:
        classes: in the order of the series.
        ticks: how many there will be at most.
    """

    def __init__(self, classes: Sequence[TaskClass], ticks: int) -> None:
        self._names = tuple(one.name for one in classes)
        self._signals = np.full((len(_ROWS), len(classes), STEPS + ticks), np.nan)
        self._ticks = 0

    def observe(self, measured: Float) -> None:
        """The next tick's measurements [C, M]."""
        step = self._signals[:, :, STEPS + self._ticks]  # [9, C]
        step[_RATE_ROWS] = measured[:, _RATE_COLUMNS].T / STEP_S
        step[_GAUGE_ROWS] = measured[:, _GAUGE_COLUMNS].T
        first_tokens = measured[:, Measurement.FIRST_TOKENS]  # [C]
        came = first_tokens > 0  # [C]
        step[_TTFT_ROW, came] = measured[came, Measurement.TTFT_SUM_S] / first_tokens[came]
        self._ticks += 1

    def window(self) -> Window:
        """The window that ends with the last tick observed; time is counted from the first."""
        first = self._ticks
        return Window(
            end_unix_s=self._ticks * STEP_S,
            step_s=STEP_S,
            task_classes=self._names,
            signals={
                signal: self._signals[row, :, first : first + STEPS]
                for row, signal in enumerate(_ROWS)
            },
        )
