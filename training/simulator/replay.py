"""A workload that resembles what a recorded window saw.

A window holds rates and means and no single request. Per class and step as many requests
are drawn as arrived, evenly spread over the step; their lengths are lognormal with the
class's mean over the window.

Shapes: C classes, T steps.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from models.classes import TaskClass
from models.rule import RULE
from models.window import Signal, Window, known
from training.simulator.lengths import Independent, Lognormal, RequestLengths, whole_tokens
from training.simulator.workload import Workload

LENGTH_CV = 1.0
"""Of lengths that nothing is known of but their mean: as an exponential's."""


def replay_window(
    window: Window,
    classes: Sequence[TaskClass],
    *,
    seed: int | tuple[int, ...],
    lengths: Sequence[RequestLengths] | None = None,
) -> Workload:
    """Draw a workload as long as the window.

    A step that was not measured counts as the mean of the class's measured ones, and a class
    that was measured in no step does not ask: what the caller knows better it can say by
    another window.

    Args:
        window: what was recorded.
        classes: the window's, in its order.
        seed: of times and lengths.
        lengths: by class; None: from the window's means.

    Raises:
        ValueError: ``classes`` are not the window's, in its order.
    """
    window.require_classes([kind.name for kind in classes])
    rng = np.random.default_rng(seed)
    drawn_from = window_lengths(window) if lengths is None else lengths
    counts = _arrivals(window, rng)  # [C, T]
    per_class = counts.sum(axis=1)  # [C]
    steps = np.tile(np.arange(window.steps), len(classes))  # [C * T]
    step_of = np.repeat(steps, counts.ravel())  # [N]
    pairs = [kind.draw(rng, count) for kind, count in zip(drawn_from, per_class, strict=True)]
    return Workload.in_order(
        arrival_s=(step_of + rng.random(len(step_of))) * window.step_s,
        class_index=np.repeat(np.arange(len(classes)), per_class),
        prompt_tokens=whole_tokens(np.concatenate([prompts for prompts, _ in pairs])),
        output_tokens=whole_tokens(np.concatenate([outputs for _, outputs in pairs])),
        classes=classes,
    )


def window_lengths(window: Window) -> list[RequestLengths]:
    """Of each class, from the window's mean tokens per request."""
    prompts = _per_request(window, Signal.PROMPT_TOKENS_PER_S, Signal.ARRIVALS_PER_S)
    outputs = _per_request(window, Signal.GENERATION_TOKENS_PER_S, Signal.FINISHED_PER_S)
    return [lengths_from_means(*means) for means in zip(prompts, outputs, strict=True)]


def lengths_from_means(
    prompt_tokens: float | None, output_tokens: float | None, cv: float = LENGTH_CV
) -> RequestLengths:
    """Lognormal ones; None: unknown, the rule's prior."""
    prompt = RULE.prior_prompt_tokens if prompt_tokens is None else prompt_tokens
    output = RULE.prior_generation_tokens if output_tokens is None else output_tokens
    return Independent(Lognormal(prompt, cv), Lognormal(output, cv))


def _arrivals(window: Window, rng: np.random.Generator) -> NDArray[np.int64]:
    """[C, T] whole numbers of requests whose sum over the steps is that of the rates.

    Rates that a metric store extrapolates are no whole numbers per step: the fractions add
    up from step to step, from a random beginning.
    """
    rates = window.signals[Signal.ARRIVALS_PER_S]  # [C, T]
    measured = known(rates)  # [C, T]
    total = np.where(measured, rates, 0.0).sum(axis=1, keepdims=True)  # [C, 1]
    mean = total / np.maximum(measured.sum(axis=1, keepdims=True), 1)  # [C, 1]
    expected = np.where(measured, rates, mean) * window.step_s  # [C, T]
    beginning = rng.random((len(expected), 1))  # [C, 1]
    upto = np.floor(beginning + np.cumsum(expected, axis=1))  # [C, T]
    return np.diff(upto, axis=1, prepend=0.0).astype(np.int64)


def _per_request(window: Window, tokens: Signal, requests: Signal) -> list[float | None]:
    """[C] mean over the steps in which both are known; None where there was no request."""
    both = known(window.signals[tokens]) & known(window.signals[requests])  # [C, T]
    token_sum, request_sum = (
        np.where(both, window.signals[signal], 0.0).sum(axis=1).tolist()
        for signal in (tokens, requests)
    )  # each [C]
    return [ratio_or_none(*sums) for sums in zip(token_sum, request_sum, strict=True)]


def ratio_or_none(tokens: float, requests: float) -> float | None:
    """Mean tokens; None where there was no request, or no token."""
    return tokens / requests if tokens > 0 and requests > 0 else None
