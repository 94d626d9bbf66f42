"""The snapshots that are in force while the plugin is measured."""

import math

from dataplane.weights import ClassPolicy, Discipline, LatePolicy, Slo, Tier, WeightTable

_TIERS = (Tier.P0, Tier.P1, Tier.P2)


def weight_table(classes: int, *, version: int = 1) -> WeightTable:
    """Classes ``class-0`` and so on, with weights that differ and that the version turns round.

    Each part of the plugin has something to look at: classes of each tier, half of them
    demote late requests, every third has a bound on its wait, all have an objective for
    their pace. But none has a reason to act, as stock vLLM is to compute the same batches:
    weights are too close for preemption, and the pace is easily kept.
    """
    policies = [_policy(number, classes, version) for number in range(classes)]
    return WeightTable(
        epoch=1,
        version=version,
        ttl_s=math.inf,
        mode="rule",
        discipline=Discipline.APQ,
        policies={policy.task_class: policy for policy in policies},
        received_at_s=0.0,
    )


def _policy(number: int, classes: int, version: int) -> ClassPolicy:
    return ClassPolicy(
        task_class=f"class-{number}",
        weight=1.0 + 0.4 * ((number + version) % classes) / classes,
        default_weight=1.0,
        slo=Slo(ttft_s=5.0 + number % 7, tpot_s=1.0),
        late=LatePolicy.DEMOTE if number % 2 else LatePolicy.SERVE,
        max_wait_s=None if number % 3 else 120.0,
        tier=_TIERS[number % len(_TIERS)],
    )
