"""The door: each request gets a ticket with its class and its age."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from dataplane.clock import Clock
from dataplane.faults import FaultBarrier
from dataplane.labels import CLAIM, DEFAULT_CLASS, TENANT, ClassLabels
from dataplane.meter import Meter
from dataplane.rules import RequestTraits
from dataplane.ticket import Ticket
from dataplane.weights import WeightTable

LONGEST_TRANSIT_S = 60.0
"""What a request may have waited before it reached the scheduler; more is a stepped clock."""


class Arrival(Protocol):
    """What the door looks at of a vLLM request."""

    request_id: str
    arrival_time: float
    num_prompt_tokens: int
    sampling_params: Any
    priority: int
    lora_request: Any


class Intake:
    """Holds the tickets of all live requests. Each ticket is metered as one arrival.

    Args:
        meter: counts the arrivals.
        labels: resolves classes.
        table: gives the table in force.
        barrier: ends faults; a request whose class cannot be found gets the default one.
    """

    def __init__(
        self,
        *,
        meter: Meter,
        labels: ClassLabels,
        table: Callable[[float], WeightTable],
        barrier: FaultBarrier,
        clock: Clock,
    ) -> None:
        self._meter = meter
        self._labels = labels
        self._table = table
        self._barrier = barrier
        self._clock = clock
        self.tickets: dict[str, Ticket] = {}

    def ticket_of(self, request: Arrival) -> Ticket:
        """The request's ticket, written at the first call. Never raises."""
        ticket = self.tickets.get(request.request_id)
        if ticket is None:
            now_s = self._clock.monotonic_s()
            ticket = Ticket(request.request_id, DEFAULT_CLASS, now_s)
            self.tickets[request.request_id] = ticket
            with self._barrier:
                self._fill_in(ticket, request, now_s)
            self._meter.arrived(ticket)
        return ticket

    def task_class_of(self, request: Arrival) -> str:
        """The class of a request, without writing it a ticket if it has ended already."""
        ticket = self.tickets.get(request.request_id)
        return DEFAULT_CLASS if ticket is None else ticket.task_class

    def _fill_in(self, ticket: Ticket, request: Arrival, now_s: float) -> None:
        # The API process stamps arrivals with its wall clock, which is this host's. It is
        # looked at once, here: a clock that steps later ages nobody.
        transit_s = self._clock.wall_s() - request.arrival_time
        if math.isfinite(transit_s):
            ticket.arrived_s = now_s - min(max(transit_s, 0.0), LONGEST_TRANSIT_S)
        parameters = request.sampling_params
        extra = getattr(parameters, "extra_args", None) or {}
        ticket.prompt_tokens = request.num_prompt_tokens
        ticket.max_tokens = getattr(parameters, "max_tokens", None)
        ticket.stops_on_text = bool(getattr(parameters, "stop", None))
        ticket.task_class = self._labels.resolve(
            extra.get(CLAIM), _traits(request, extra), self._table(now_s)
        )


def _traits(request: Arrival, extra: Mapping[str, object]) -> RequestTraits:
    parameters, lora, tenant = request.sampling_params, request.lora_request, extra.get(TENANT)
    return RequestTraits(
        prompt_tokens=request.num_prompt_tokens,
        max_tokens=getattr(parameters, "max_tokens", None),
        lora=None if lora is None else lora.lora_name,
        priority=request.priority,
        tenant=tenant if isinstance(tenant, str) else None,
        streaming=getattr(getattr(parameters, "output_kind", None), "name", "") == "DELTA",
    )
