import pytest

from dataplane.rules import BUILT_IN_RULES, ClassRule, RequestTraits


def test_bounds_are_inclusive() -> None:
    rule = ClassRule("some", min_prompt_tokens=100, max_prompt_tokens=200)
    matching = [n for n in (99, 100, 200, 201) if rule.matches(RequestTraits(n))]
    assert matching == [100, 200]


def test_a_rule_without_conditions_matches_everything() -> None:
    assert ClassRule("all").matches(RequestTraits(0))


@pytest.mark.parametrize(
    ("rule", "matching", "other"),
    [
        (ClassRule("c", lora="fr"), RequestTraits(1, lora="fr"), RequestTraits(1)),
        (ClassRule("c", tenant="acme"), RequestTraits(1, tenant="acme"), RequestTraits(1)),
        (ClassRule("c", streaming=False), RequestTraits(1), RequestTraits(1, streaming=True)),
        (ClassRule("c", max_priority=-1), RequestTraits(1, priority=-5), RequestTraits(1)),
        (ClassRule("c", min_max_tokens=9), RequestTraits(1), RequestTraits(1, max_tokens=8)),
        (ClassRule("c", max_max_tokens=9), RequestTraits(1, max_tokens=9), RequestTraits(1)),
    ],
)
def test_each_trait_can_be_a_condition(
    rule: ClassRule, matching: RequestTraits, other: RequestTraits
) -> None:
    assert rule.matches(matching)
    assert not rule.matches(other)


def test_all_conditions_must_hold() -> None:
    rule = ClassRule("c", max_prompt_tokens=10, tenant="acme")
    assert rule.matches(RequestTraits(10, tenant="acme"))
    assert not rule.matches(RequestTraits(11, tenant="acme"))
    assert not rule.matches(RequestTraits(10, tenant="other"))


@pytest.mark.parametrize(
    ("traits", "task_class"),
    [
        (RequestTraits(0), "short"),
        (RequestTraits(127, streaming=True), "short"),
        (RequestTraits(128), "batch"),
        (RequestTraits(128, streaming=True), "streaming"),
        (RequestTraits(8000, streaming=True), "streaming"),
        (RequestTraits(8001, streaming=True), "long"),
        (RequestTraits(8001), "long"),
    ],
)
def test_the_built_in_rules_sort_by_length_then_by_streaming(
    traits: RequestTraits, task_class: str
) -> None:
    matching = [rule.task_class for rule in BUILT_IN_RULES if rule.matches(traits)]
    assert matching[0] == task_class
