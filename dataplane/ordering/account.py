"""What the plugin learns of a class: the work of its requests, and the service it got."""

from dataclasses import dataclass

from dataplane.ticket import Ticket

GENERATED_TOKEN_COST = 4.0
"""Work of a generated token, in prompt tokens, as the control plane's rule measures it."""

PRIOR_GENERATION_TOKENS = 64.0
PRIOR_REQUESTS = 4.0
"""The prior of a class's mean generation, and how many requests it weighs as much as."""

MEMORY_REQUESTS = 256.0
"""The mean follows a change of the traffic within a few hundred requests."""


@dataclass(slots=True)
class Account:
    """One class's account.

    Attributes:
        generation_tokens: mean tokens that a request generates, shrunk toward the prior.
        finish_tag: service that the class got under ``wfq``, in tokens per unit of weight.
    """

    generation_tokens: float = PRIOR_GENERATION_TOKENS
    finish_tag: float = 0.0
    _requests: float = PRIOR_REQUESTS

    def work_tokens(self, ticket: Ticket) -> float:
        """Expected work of a request in prompt tokens: ``prompt + cost * generation``, > 0.

        The generation is the class's mean, or the most that this request may generate if
        that is less.
        """
        expected = self.generation_tokens
        if ticket.max_tokens is not None and ticket.max_tokens < expected:
            expected = ticket.max_tokens
        return work_tokens(ticket.prompt_tokens, expected)

    def learn(self, generated_tokens: int) -> None:
        """A request ended that was on the engine and generated so much."""
        self._requests = min(self._requests + 1.0, MEMORY_REQUESTS)
        self.generation_tokens += (generated_tokens - self.generation_tokens) / self._requests


def work_tokens(prompt_tokens: int, generated_tokens: float) -> float:
    """Work in prompt tokens; at least one, as even an empty request takes a step."""
    return max(prompt_tokens + GENERATED_TOKEN_COST * generated_tokens, 1.0)
