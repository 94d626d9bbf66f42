"""A queue with what a test says is in it."""

from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request

from dataplane.faults import FaultBarrier
from dataplane.queue import ClassRequestQueue
from dataplane.ticket import Ticket
from dataplane.weights import ClassPolicy, Discipline, LatePolicy, Slo, WeightTable

PARAMETERS = SamplingParams(max_tokens=1)


def vllm_request(request_id: str) -> Request:
    return Request(request_id, [1], PARAMETERS, None, arrival_time=0.0)


def policy_of(
    weight: float = 1.0,
    ttft_s: float = 1.0,
    *,
    value: float = 1.0,
    late: LatePolicy = LatePolicy.SERVE,
    max_wait_s: float | None = None,
) -> ClassPolicy:
    return ClassPolicy("k", weight, 1.0, Slo(ttft_s), value, late, max_wait_s)


def table_of(discipline: Discipline, policies: dict[str, ClassPolicy]) -> WeightTable:
    return WeightTable(
        epoch=1, version=1, ttl_s=60.0, mode="rule", discipline=discipline, policies=policies
    )


class Shelf:
    """A queue and its tickets."""

    def __init__(self) -> None:
        self.tickets: dict[str, Ticket] = {}
        self.requests: dict[str, Request] = {}
        self.barrier = FaultBarrier()
        self.queue = ClassRequestQueue(
            lambda request: self.tickets[request.request_id], self.barrier
        )

    def add(
        self, request_id: str, task_class: str, arrived_s: float, prompt_tokens: int = 1
    ) -> Request:
        request = self.requests[request_id] = vllm_request(request_id)
        self.tickets[request_id] = Ticket(
            request_id, task_class, arrived_s, prompt_tokens=prompt_tokens
        )
        self.queue.add_request(request)
        return request

    def pop(self) -> str:
        request_id: str = self.queue.pop_request().request_id
        return request_id

    def drain(self) -> list[str]:
        return [self.pop() for _ in range(len(self.queue))]
