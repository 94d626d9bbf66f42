"""The generalised c-mu rule: the weights that need no learning.

An engine serves the class with the largest ``w_k * age_k / slo_k``. With the quadratic
delay cost ``C_k(a) = value_k * (a / slo_k)^2 / 2`` the generalised c-mu index is

    C_k'(a) * mu_k = value_k * mu_k * a / slo_k^2,        1 / mu_k = mean work of a request,

so the two agree when ``w_k`` is proportional to ``value_k * mu_k / slo_k``.

Sources: L. Kleinrock, "A delay dependent queue discipline" (Naval Research Logistics
Quarterly 11, 1964) for linearly accumulating priority; J. A. Van Mieghem, "Dynamic scheduling
with convex delay costs: the generalized c-mu rule" (Annals of Applied Probability 5, 1995) for
the index and its optimality in heavy traffic; A. Mandelbaum and A. L. Stolyar, "Scheduling
flexible servers with convex delay costs" (Operations Research 52, 2004) for many servers.

Shapes: C classes, T steps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.classes import TaskClass
from models.window import Signal, Window, known


@dataclass(frozen=True, slots=True)
class RuleParameters:
    """How work is measured, and how far the weights may lie apart.

    Attributes:
        generated_token_cost: work of a generated token, in prompt tokens: a prompt is
            processed many tokens at a time, generation takes a step per token.
        prior_requests: a class's mean work is shrunk toward the mean over all classes
            as if that had been seen on this many requests; so is the latter toward the
            two priors below.
        prior_prompt_tokens: mean prompt before anything is known.
        prior_generation_tokens: mean generation before anything is known.
        max_ratio: largest ratio between two weights. A class with less still gets this.
    """

    generated_token_cost: float = 4.0
    prior_requests: float = 4.0
    prior_prompt_tokens: float = 256.0
    prior_generation_tokens: float = 64.0
    max_ratio: float = 1000.0


RULE = RuleParameters()


def rule_shares(
    window: Window, classes: Sequence[TaskClass], parameters: RuleParameters = RULE
) -> NDArray[np.float64]:
    """The rule's share of each class: [C], all > 0, sum 1.

    Units cancel: values, objectives and work count only relative to those of the other
    classes. A window without traffic, or one that is unknown throughout, takes the same work
    for all classes, which leaves ``value / slo``.

    Raises:
        ValueError: ``classes`` are not the window's, in its order.
    """
    window.require_classes([task_class.name for task_class in classes])
    value = np.array([task_class.value for task_class in classes])  # [C]
    slo_s = np.array([task_class.slo.ttft_s for task_class in classes])  # [C]
    work_tokens = mean_work_tokens(window, parameters)  # [C]
    log_weight = np.log(value) - np.log(slo_s) - np.log(work_tokens)  # [C]
    log_weight -= log_weight.max()
    weight = np.exp(np.maximum(log_weight, -math.log(parameters.max_ratio)))  # [C]
    shares: NDArray[np.float64] = weight / weight.sum()
    return shares


def mean_work_tokens(window: Window, parameters: RuleParameters = RULE) -> NDArray[np.float64]:
    """Mean work of a request of each class over the window, in prompt tokens: [C], > 0.

    Prompt tokens are counted when a request arrives, generated tokens over its life: the one
    is per arrival, the other per finished request.
    """
    prompt_tokens = _tokens_per_request(
        window,
        Signal.PROMPT_TOKENS_PER_S,
        Signal.ARRIVALS_PER_S,
        prior_tokens=parameters.prior_prompt_tokens,
        prior_requests=parameters.prior_requests,
    )
    generation_tokens = _tokens_per_request(
        window,
        Signal.GENERATION_TOKENS_PER_S,
        Signal.FINISHED_PER_S,
        prior_tokens=parameters.prior_generation_tokens,
        prior_requests=parameters.prior_requests,
    )
    return prompt_tokens + parameters.generated_token_cost * generation_tokens


def _tokens_per_request(
    window: Window,
    tokens: Signal,
    requests: Signal,
    *,
    prior_tokens: float,
    prior_requests: float,
) -> NDArray[np.float64]:
    """Shrunk mean, [C], over the steps in which both signals are known."""
    tokens_per_s, requests_per_s = window.signals[tokens], window.signals[requests]  # [C, T]
    both = known(tokens_per_s) & known(requests_per_s)  # [C, T]
    token_sum = np.where(both, tokens_per_s, 0.0).sum(axis=1) * window.step_s  # [C]
    request_sum = np.where(both, requests_per_s, 0.0).sum(axis=1) * window.step_s  # [C]
    pooled = (token_sum.sum() + prior_requests * prior_tokens) / (
        request_sum.sum() + prior_requests
    )
    mean: NDArray[np.float64] = (token_sum + prior_requests * pooled) / (
        request_sum + prior_requests
    )
    return mean
