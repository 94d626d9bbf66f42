"""Weighted fair queueing: tokens served in proportion to the weights."""

from collections.abc import Iterable

from dataplane.ordering.account import Account, work_tokens
from dataplane.ordering.claim import Claim
from dataplane.ticket import Ticket
from dataplane.weights import ClassPolicy


def wfq(ticket: Ticket, policy: ClassPolicy, account: Account) -> Claim:
    """The class goes next that would be served least: smallest ``tag_k + work / w_k``.

    ``tag_k`` is the class's service so far in tokens per unit of weight, and the work that
    of its head, in prompt tokens; so the tags of classes that always wait stay within one
    request of each other, and their tokens go as their weights. The weights in force act
    on the head's own work, hence on the very next dispatch. Objectives have no say:
    this divides capacity, and under overload every class's wait grows.

    A. Demers, S. Keshav, S. Shenker, "Analysis and simulation of a fair queueing algorithm"
    (SIGCOMM 1989) for finish tags; S. J. Golestani, "A self-clocked fair queueing scheme for
    broadband applications" (INFOCOM 1994) for a clock that is read off the tags; Y. Sheng et
    al., "Fairness in serving large language models" (OSDI 2024) for counting tokens of
    prompt and generation, charged ahead by a prediction that is put right at the end.
    """
    return -(account.finish_tag + _unpaid_tokens(ticket, account) / policy.weight), 0.0


class FairClock:
    """Virtual time in tokens per unit of weight: the tag at which service is being given.

    A class that begins to wait joins at the clock. Its idleness is no credit, as its tag is
    lifted to the clock; and having been served alone is no debt, as the clock went along
    with it (the start-time rule: P. Goyal, H. Vin, H. Cheng, "Start-time fair queueing",
    SIGCOMM 1996).
    """

    def __init__(self) -> None:
        self._tag = 0.0

    def restart(self, accounts: Iterable[Account]) -> None:
        """Forget who was served what: what other disciplines gave is owed to nobody."""
        self._tag = 0.0
        for account in accounts:
            account.finish_tag = 0.0

    def join(self, account: Account) -> None:
        """The class begins to compete."""
        account.finish_tag = max(account.finish_tag, self._tag)

    def reweigh(self, account: Account, before: float, after: float) -> None:
        """The class's weight changed: it is as many *tokens* ahead of the clock as before.

        Or what it was served at the old weight would count at the new one as many times as
        much, or as little, and what is put right later would be put right at another price
        than it was charged at.
        """
        account.finish_tag = self._tag + (account.finish_tag - self._tag) * before / after

    def charge(self, account: Account, ticket: Ticket, weight: float, *, in_turn: bool) -> None:
        """The request goes onto the engine: charge the work that is expected of it, once.

        Args:
            account: the class's.
            ticket: the request's.
            weight: the class's.
            in_turn: whether the tags chose it. Only then it moves the clock: a class that is
                served out of turn may be far ahead of the others.
        """
        if ticket.dispatched_s is not None:
            return
        if in_turn:
            self._tag = max(self._tag, account.finish_tag)
        _charge(account, ticket, weight, account.work_tokens(ticket))

    @staticmethod
    def refund(account: Account, ticket: Ticket, weight: float) -> None:
        """The request did not get onto the engine after all."""
        if ticket.charged_tokens and ticket.dispatched_s is None:
            _charge(account, ticket, weight, 0.0)

    @staticmethod
    def settle(account: Account, ticket: Ticket, weight: float) -> None:
        """The request ended: charge the work that it was in place of the expected."""
        if ticket.charged_tokens:
            done = work_tokens(ticket.prompt_tokens, ticket.generated_tokens)
            _charge(account, ticket, weight, done)


def _charge(account: Account, ticket: Ticket, weight: float, tokens: float) -> None:
    """Make the work that the request has been charged this many tokens."""
    account.finish_tag += (tokens - ticket.charged_tokens) / weight
    ticket.charged_tokens = tokens


def _unpaid_tokens(ticket: Ticket, account: Account) -> float:
    """A request that was on the engine before is not charged again: it lost that work."""
    return account.work_tokens(ticket) if ticket.dispatched_s is None else 0.0
