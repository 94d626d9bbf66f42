"""Which class a request belongs to.

Clients choose class names, so names are input: their alphabet, their length and their
number are bounded before they become a queue or a label of a metric.
"""

import re
from collections.abc import Iterable

from dataplane.rules import BUILT_IN_RULES, ClassRule, RequestTraits
from dataplane.weights import WeightTable

CLAIM = "task_class"
"""Key in ``vllm_xargs`` under which a client names its class."""

TENANT = "tenant"
"""Likewise, on whose behalf it asks. Rules look at it; it is never a label of a metric."""

DEFAULT_CLASS = "default"
"""Of requests that name no class and match no rule."""

OTHER_CLASS = "other"
"""Of requests whose name is malformed or one too many."""

CLASS_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class ClassLabels:
    """Turns what a request claims into one of a bounded set of names.

    Names of the snapshot always have a place, and so have ``default`` and ``other``; of the
    rest, the first ``max_names`` do.
    """

    def __init__(self, max_names: int) -> None:
        self._names = {DEFAULT_CLASS, OTHER_CLASS}
        self._most_names = len(self._names) + max_names

    def resolve(self, claim: object, traits: RequestTraits, table: WeightTable) -> str:
        """The class of a request.

        Args:
            claim: the request's ``task_class`` as sent, of whatever type; None: not sent.
            traits: what rules look at.
            table: the snapshot in force; its rules apply to requests without a claim.
        """
        name = named_by(claim)
        if name is None:
            return _by_rule(traits, table)
        if name in table.policies or name in self._names:
            return name
        if len(self._names) >= self._most_names:
            return OTHER_CLASS
        self._names.add(name)
        return name


def named_by(claim: object) -> str | None:
    """The class that a claim names, were there room for every name; None: there is no claim."""
    if isinstance(claim, str) and CLASS_NAME.fullmatch(claim):
        return claim
    return None if claim is None else OTHER_CLASS


def _by_rule(traits: RequestTraits, table: WeightTable) -> str:
    for rule in table.rules or _built_in_rules(table):
        if rule.matches(traits):
            return rule.task_class
    return DEFAULT_CLASS


def _built_in_rules(table: WeightTable) -> Iterable[ClassRule]:
    before_the_first_snapshot = table.version == 0
    return (
        rule
        for rule in BUILT_IN_RULES
        if before_the_first_snapshot or rule.task_class in table.policies
    )
