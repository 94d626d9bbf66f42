"""From answers to figures: latency percentiles, SLO attainment, goodput.

Unknown is None (null in JSON), never 0.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from benchmarks.client import Answer, Replay
from models.classes import Slo, TaskClass


@dataclass(frozen=True, slots=True)
class ClassResult:
    """One class under one policy."""

    value: float
    n: int
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    tpot_p50_s: float | None
    tpot_p99_s: float | None
    e2e_p50_s: float | None
    e2e_p99_s: float | None
    slo_attainment: float | None
    longest_wait_s: float | None


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """All classes under one policy.

    Attributes:
        goodput_value_per_s: value of the requests that met their SLO, per second.
        tokens_per_s: prompt and output tokens of complete answers, per second.
        preemptions: as the engine counted them; None when it was not asked.
        recomputed_tokens: likewise; stock vLLM does not count them.
    """

    classes: dict[str, ClassResult]
    goodput_value_per_s: float
    goodput_requests_per_s: float
    tokens_per_s: float
    failed: int
    preemptions: int | None = None
    recomputed_tokens: int | None = None

    def as_json(self) -> dict[str, object]:
        """Return the JSON form."""
        return asdict(self)


def meets_slo(answer: Answer, slo: Slo) -> bool:
    """Whether a complete answer met every objective of ``slo``."""
    if answer.failure is not None or answer.ttft_s is None or answer.e2e_s is None:
        return False
    tpot_s = answer.tpot_s
    return (
        answer.ttft_s <= slo.ttft_s
        and (slo.e2e_s is None or answer.e2e_s <= slo.e2e_s)
        and (slo.tpot_s is None or tpot_s is None or tpot_s <= slo.tpot_s)
    )


def summarise(
    replays: Sequence[Replay],
    classes: Sequence[TaskClass],
    *,
    preemptions: int | None = None,
    recomputed_tokens: int | None = None,
) -> PolicyResult:
    """Pool the replays of one policy.

    Raises:
        ValueError: ``replays`` is empty.
    """
    if not replays:
        raise ValueError("nothing was replayed")
    span_s = sum(replay.span_s for replay in replays)
    answers = [answer for replay in replays for answer in replay.answers]
    met = {
        kind.name: sum(meets_slo(answer, kind.slo) for answer in _of(answers, kind.name))
        for kind in classes
    }
    return PolicyResult(
        classes={
            kind.name: _class_result(list(_of(answers, kind.name)), kind, met[kind.name])
            for kind in classes
        },
        goodput_value_per_s=sum(met[kind.name] * kind.value for kind in classes) / span_s,
        goodput_requests_per_s=sum(met.values()) / span_s,
        tokens_per_s=sum(map(_tokens, answers)) / span_s,
        failed=sum(answer.failure is not None for answer in answers),
        preemptions=preemptions,
        recomputed_tokens=recomputed_tokens,
    )


def _class_result(answers: list[Answer], kind: TaskClass, met: int) -> ClassResult:
    ttfts = [answer.ttft_s for answer in answers if answer.ttft_s is not None]
    tpots = [answer.tpot_s for answer in answers if answer.tpot_s is not None]
    e2es = [answer.e2e_s for answer in answers if answer.e2e_s is not None]
    return ClassResult(
        value=kind.value,
        n=len(answers),
        ttft_p50_s=_percentile(ttfts, 50),
        ttft_p99_s=_percentile(ttfts, 99),
        tpot_p50_s=_percentile(tpots, 50),
        tpot_p99_s=_percentile(tpots, 99),
        e2e_p50_s=_percentile(e2es, 50),
        e2e_p99_s=_percentile(e2es, 99),
        slo_attainment=met / len(answers) if answers else None,
        longest_wait_s=max(ttfts, default=None),
    )


def _of(answers: Iterable[Answer], task_class: str) -> Iterable[Answer]:
    return (answer for answer in answers if answer.arrival.task_class == task_class)


def _tokens(answer: Answer) -> int:
    if answer.failure is not None:
        return 0
    return answer.arrival.prompt_tokens + answer.output_tokens


def _percentile(values: Sequence[float], q: float) -> float | None:
    return float(np.percentile(values, q)) if values else None
