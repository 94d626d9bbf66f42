"""Disciplines whose index grows with the age of the head: no class starves."""

from dataplane.ordering.account import Account
from dataplane.ordering.claim import Claim
from dataplane.ticket import Ticket
from dataplane.weights import ClassPolicy

CONTEXT_TOKENS = 8192
"""A prompt of this length or more has the full context complexity, 1."""


def apq(_ticket: Ticket, policy: ClassPolicy, _account: Account) -> Claim:
    """Accumulating priority: the largest ``w_k * age / slo_k``.

    Every class with a positive weight overtakes any other by waiting; the weights say how
    many objectives' worth of waiting they are apart. The default: weights steer it, and
    it needs to know nothing of the requests.

    L. Kleinrock, "A delay dependent queue discipline", Naval Research Logistics Quarterly
    11 (1964), for linear accumulation. Read as a slope of cost it is the generalised c-mu
    rule with quadratic cost: J. A. Van Mieghem, "Dynamic scheduling with convex delay costs:
    the generalized c-mu rule", Annals of Applied Probability 5 (1995).
    """
    return 0.0, policy.gain_per_s


def gcmu(ticket: Ticket, policy: ClassPolicy, account: Account) -> Claim:
    """Generalised c-mu with live ages: the largest ``value_k * mu * age / slo_k^2``.

    ``1 / mu`` is the work of this very head in prompt tokens, ``prompt + cost * expected
    generation``, so of two equally old requests of equal worth the smaller goes first. The
    cost of delay is ``value_k * (age / slo_k)^2 / 2``. It takes a class's value and not its
    weight: it needs no control plane, and a new weight changes nothing. Near saturation it
    minimises the total cost of delay; a large prompt waits in proportion to its size.

    Van Mieghem (1995), as in ``apq``; A. Mandelbaum and A. L. Stolyar, "Scheduling flexible
    servers with convex delay costs", Operations Research 52 (2004), for many servers.
    """
    slo_s = policy.slo.ttft_s
    return 0.0, policy.value / account.work_tokens(ticket) / slo_s / slo_s


def cp_score(ticket: Ticket, policy: ClassPolicy, _account: Account) -> Claim:
    """A fixed sum: ``0.4 / latency + 0.3 * weight + 0.2 * complexity + 0.1 * age``.

    latency     estimated, in ms: 1.2 x prompt tokens + 120
    weight      the class's, as published: the control plane's weights sum to 1. This is the
                only discipline for which more than their ratios matters
    complexity  prompt tokens / 8192, at most 1
    age         in seconds

    The sum is of published make, but for one sign: as published it subtracts the age, by
    which the oldest request goes last and starves under load. Here it is added.

    The parts are worth at most 0.0033, 0.3 and 0.2, and each second of age 0.1: for heads
    within about 5 s of each other weight and length decide, beyond that it is first come,
    first served; the latency settles near-ties only.
    """
    latency_ms = 1.2 * ticket.prompt_tokens + 120.0
    complexity = min(ticket.prompt_tokens / CONTEXT_TOKENS, 1.0)
    return 0.4 / latency_ms + 0.3 * policy.weight + 0.2 * complexity, 0.1
