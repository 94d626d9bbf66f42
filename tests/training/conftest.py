"""A history with something to learn in it."""

import numpy as np
import pytest

from models.classes import Slo, TaskClass
from models.window import STEP_S, Signal, Window

CLASSES = (
    TaskClass("vip", Slo(ttft_s=1.0), value=8.0),
    TaskClass("free", Slo(ttft_s=4.0), value=1.0),
)


def bursty_history(steps: int, seed: int) -> Window:
    """A burst of arrivals shows as violations one step later, and only then.

    So the last violation fraction (persistence) is a bad forecast, as is the mean.
    """
    rng = np.random.default_rng(seed)
    burst = rng.random((len(CLASSES), steps)) < 0.3
    after_burst = np.roll(burst, 1, axis=1)
    arrivals = np.where(burst, 6.0, 2.0)
    finished = np.full(burst.shape, 3.0)
    signals = {
        Signal.ARRIVALS_PER_S: arrivals,
        Signal.FINISHED_PER_S: finished,
        Signal.VIOLATIONS_PER_S: finished * np.where(after_burst, 0.8, 0.05),
        Signal.PROMPT_TOKENS_PER_S: arrivals * 200.0,
        Signal.GENERATION_TOKENS_PER_S: finished * 50.0,
        Signal.TTFT_MEAN_S: np.where(after_burst, 3.0, 0.5),
        Signal.WAITING: np.where(burst, 8.0, 1.0),
        Signal.WAITING_PAST_SLO: np.zeros(burst.shape),
        Signal.OLDEST_WAIT_S: np.where(burst, 0.9, 0.1),
    }
    return Window(
        end_unix_s=1_700_000_000.0,
        step_s=STEP_S,
        task_classes=tuple(task_class.name for task_class in CLASSES),
        signals=signals,
    )


@pytest.fixture(scope="session")
def classes() -> tuple[TaskClass, ...]:
    return CLASSES


@pytest.fixture(scope="session")
def history() -> Window:
    return bursty_history(steps=240, seed=7)
