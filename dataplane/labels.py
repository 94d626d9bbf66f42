"""Which class a request belongs to.

Clients choose class names, so names are input: their alphabet, their length and their
number are bounded before they become a queue or a label of a metric.
"""

import re

from dataplane.rules import RequestTraits
from dataplane.weights import WeightTable

DEFAULT_CLASS = "default"
"""Of requests that name no class and match no rule."""

OTHER_CLASS = "other"
"""Of requests whose name is malformed or one too many."""

CLASS_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class ClassLabels:
    """Turns what a request claims into one of a bounded set of names.

    Names of the snapshot always have a place; of the others, the first ``max_names`` do.
    """

    def __init__(self, max_names: int) -> None:
        self._max_names = max_names
        self._names: set[str] = set()

    def resolve(self, claim: object, traits: RequestTraits, table: WeightTable) -> str:
        """The class of a request.

        Args:
            claim: the request's ``task_class`` as sent, of whatever type; None: not sent.
            traits: what rules look at.
            table: the snapshot in force; its rules apply to requests without a claim.
        """
        if claim is None:
            return _by_rule(traits, table)
        if not isinstance(claim, str):
            return OTHER_CLASS
        if claim in table.policies or claim in self._names:
            return claim
        return self._admit(claim)

    def _admit(self, name: str) -> str:
        if len(self._names) >= self._max_names or CLASS_NAME.fullmatch(name) is None:
            return OTHER_CLASS
        self._names.add(name)
        return name


def _by_rule(traits: RequestTraits, table: WeightTable) -> str:
    for rule in table.rules:
        if rule.matches(traits):
            return rule.task_class
    return DEFAULT_CLASS
