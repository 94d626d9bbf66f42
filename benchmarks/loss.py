"""What the requests of a replay lost, by the definition that training minimises."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.client import Replay
from models.classes import TaskClass
from models.loss import Fates, SloLoss, slo_loss


def replay_loss(run: Replay, classes: Sequence[TaskClass]) -> SloLoss:
    """The loss of all its requests, by the client's times; what is not complete is lost.

    Raises:
        KeyError: an answer is of no class.
    """
    rows = {kind.name: row for row, kind in enumerate(classes)}
    answers = run.answers
    return slo_loss(
        Fates(
            class_index=np.array([rows[answer.arrival.task_class] for answer in answers], np.int32),
            age_s=np.zeros(len(answers)),  # every request is over, or lost
            ttft_s=_seconds([answer.ttft_s for answer in answers]),
            tpot_s=_seconds([answer.tpot_s for answer in answers]),
            e2e_s=_seconds([answer.e2e_s for answer in answers]),
            lost=np.array(
                [answer.failure is not None or answer.e2e_s is None for answer in answers], np.bool_
            ),
        ),
        classes,
    )


def _seconds(values: Sequence[float | None]) -> NDArray[np.float64]:
    return np.array([np.nan if value is None else value for value in values], np.float64)
