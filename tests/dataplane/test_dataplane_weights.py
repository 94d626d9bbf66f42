import math

import pytest

from dataplane.weights import ClassPolicy, Discipline, Slo, WeightTable


def table(version: int = 1, epoch: int = 1, **policies: ClassPolicy) -> WeightTable:
    return WeightTable(
        epoch=epoch,
        version=version,
        ttl_s=10.0,
        mode="rule",
        discipline=Discipline.APQ,
        policies=policies,
        received_at_s=100.0,
    )


VIP = ClassPolicy("vip", weight=8.0, default_weight=2.0, slo=Slo(ttft_s=0.5))
BATCH = ClassPolicy("batch", weight=0.5, default_weight=1.0, slo=Slo(ttft_s=30.0))


def test_gain_is_weight_over_objective() -> None:
    assert VIP.gain_per_s == 16.0


def test_an_unnamed_class_is_the_least_urgent_of_all() -> None:
    unnamed = table(vip=VIP, batch=BATCH).policy("invented")
    assert (unnamed.weight, unnamed.slo.ttft_s) == (0.5, 30.0)


def test_a_gain_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match=r"weight 1.0 over ttft_s 1e-320 is too large"):
        ClassPolicy("a", 1.0, 1.0, Slo(1e-320))


def test_neutral_means_default_weights_and_nothing_else_changes() -> None:
    neutral = table(vip=VIP, batch=BATCH).neutralised()
    assert neutral.neutral
    assert {name: policy.weight for name, policy in neutral.policies.items()} == {
        "vip": 2.0,
        "batch": 1.0,
    }
    assert neutral.policy("vip").slo == VIP.slo
    assert neutral.policy("vip").gain_per_s == 4.0
    assert neutral.received_at_s == 100.0


def test_epoch_comes_before_version() -> None:
    assert table(version=1, epoch=2).newer_than(table(version=9, epoch=1))
    assert table(version=9, epoch=1).newer_than(table(version=8, epoch=1))
    assert not table().newer_than(table())


def test_before_the_first_snapshot_the_order_is_stock_and_never_expires() -> None:
    initial = WeightTable.initial()
    assert initial.discipline is Discipline.FCFS
    assert initial.age_s(1e9) is None
    assert not initial.expired(1e9)
    assert initial.policy("any").slo.ttft_s == math.inf


def test_a_table_expires_after_its_ttl() -> None:
    assert not table().expired(110.0)
    assert table().expired(110.001)


def test_a_table_cannot_be_changed_through_the_mapping_it_was_made_of() -> None:
    policies = {"vip": VIP}
    made = table(**policies)
    policies["batch"] = BATCH
    assert set(made.policies) == {"vip"}


@pytest.mark.parametrize("weight", [0.0, -1.0, math.nan, math.inf, 1e-13, 1e308])
def test_a_weight_is_positive_and_of_a_size_that_arithmetic_survives(weight: float) -> None:
    with pytest.raises(ValueError, match="weight must be positive, from 1e-12 to 1e"):
        ClassPolicy("vip", weight=weight, default_weight=1.0, slo=Slo(1.0))


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan])
def test_an_objective_is_positive(seconds: float) -> None:
    with pytest.raises(ValueError, match="e2e_s must be a positive"):
        Slo(1.0, e2e_s=seconds)
