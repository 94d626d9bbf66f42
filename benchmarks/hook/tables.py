"""The snapshots that are in force while the plugin is measured."""

import math

from dataplane.weights import ClassPolicy, Discipline, LatePolicy, Slo, WeightTable


def weight_table(classes: int, *, version: int = 1) -> WeightTable:
    """Classes ``class-0`` and so on, with weights that differ and that the version turns round.

    Half of them demote late requests, and every third has a bound on its wait: each branch of
    a discipline is there.
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
        weight=1.0 + (number + version) % classes,
        default_weight=1.0,
        slo=Slo(ttft_s=5.0 + number % 7, tpot_s=0.1),
        late=LatePolicy.DEMOTE if number % 2 else LatePolicy.SERVE,
        max_wait_s=None if number % 3 else 120.0,
    )
