"""What the plugin is told of a simulated engine, in the plugin's own terms."""

import math

import numpy as np
from numpy.typing import NDArray

from dataplane.step_time import StepTimeModel
from dataplane.ticket import Ticket
from dataplane.weights import ClassPolicy, LatePolicy, Slo, Tier, WeightTable
from dataplane.weights import Discipline as PluginDiscipline
from models.classes import TaskClass
from training.simulator.model import EngineModel, Fleet

TIERS = {"p0": Tier.P0, "p1": Tier.P1, "p2": Tier.P2}


class Running:
    """A running request as the plugin sees it."""

    def __init__(self, ticket: Ticket, computed_tokens: int) -> None:
        self.request_id = ticket.request_id
        self.arrival_time = ticket.arrived_s
        self.num_prompt_tokens = ticket.prompt_tokens
        self.num_tokens = ticket.prompt_tokens + ticket.generated_tokens
        self.num_computed_tokens = computed_tokens
        self.num_output_tokens = ticket.generated_tokens


class Tickets:
    """The part of the plugin's intake that finds a request's ticket."""

    def __init__(self, tickets: dict[str, Ticket]) -> None:
        self.tickets = tickets

    def ticket_of(self, request: Running) -> Ticket:
        return self.tickets[request.request_id]


def step_time_model(engine: EngineModel) -> StepTimeModel:
    """What the plugin learns of such an engine."""
    return StepTimeModel(
        engine.base_s,
        engine.prefill_s_per_token,
        engine.decode_s_per_sequence,
        engine.kv_s_per_token,
    )


def table_of(fleet: Fleet, classes: tuple[TaskClass, ...], row: NDArray[np.float64]) -> WeightTable:
    """The snapshot that the control plane would send."""
    policies = {
        one.name: ClassPolicy(
            one.name,
            float(weight),
            1.0,
            Slo(one.slo.ttft_s, one.slo.tpot_s, one.slo.e2e_s),
            one.value,
            LatePolicy(one.late.value),
            one.max_wait_s,
            TIERS[one.tier.value],
        )
        for one, weight in zip(classes, row, strict=True)
    }
    return WeightTable(
        epoch=1,
        version=1,
        ttl_s=math.inf,
        mode="rule",
        discipline=PluginDiscipline(fleet.discipline.value),
        policies=policies,
    )
