"""What the door reads off vLLM's own requests, and what of it gets into the metrics."""

from dataclasses import replace
from pathlib import Path

import pytest
from loopback_control_plane import HandClock
from prometheus_client import CollectorRegistry
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.request import Request
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

from dataplane.exporter import Exporter
from dataplane.faults import FaultBarrier
from dataplane.intake import Intake
from dataplane.labels import CLASS_NAME, DEFAULT_CLASS, ClassLabels
from dataplane.meter import Meter
from dataplane.rules import ClassRule
from dataplane.state import EngineState
from dataplane.subscriber import TableInForce
from dataplane.weights import WeightTable

MAX_NAMES = 4
LORA = LoRARequest("french", 1, str(Path("adapters") / "french"))


class Door:
    """An intake under given rules, with the metrics behind it."""

    def __init__(self, clock: HandClock, *rules: ClassRule) -> None:
        self.barrier = FaultBarrier()
        self.clock = clock
        self.meter = Meter()
        table = replace(WeightTable.initial(), version=1, rules=rules)
        self.intake = Intake(
            meter=self.meter,
            labels=ClassLabels(MAX_NAMES),
            table=lambda _: table,
            barrier=self.barrier,
            clock=clock,
        )

    def class_of(self, request: Request) -> str:
        task_class = self.intake.ticket_of(request).task_class
        assert self.barrier.faults == 0
        return task_class

    def exported_labels(self) -> dict[str, set[str]]:
        registry = CollectorRegistry()
        exporter = Exporter(
            meter=self.meter,
            in_force=TableInForce(),
            state=EngineState,
            barrier=self.barrier,
            clock=self.clock,
            interval_s=1.0,
            registry=registry,
        )
        exporter.flush(self.clock.now_s)
        values: dict[str, set[str]] = {}
        for family in registry.collect():
            for sample in family.samples:
                for label, value in sample.labels.items():
                    values.setdefault(label, set()).add(value)
        return values


def request(
    request_id: str = "r1",
    *,
    prompt_tokens: int = 5,
    lora: LoRARequest | None = None,
    priority: int = 0,
    **parameters: object,
) -> Request:
    """A request as the scheduler gets it: it has travelled from the API process."""
    sent = EngineCoreRequest(
        request_id=request_id,
        prompt_token_ids=[1] * prompt_tokens,
        mm_features=None,
        sampling_params=SamplingParams(**{"max_tokens": 16, **parameters}),
        pooling_params=None,
        arrival_time=0.0,
        lora_request=lora,
        cache_salt=None,
        data_parallel_rank=None,
        priority=priority,
    )
    received = MsgpackDecoder(EngineCoreRequest).decode(MsgpackEncoder().encode(sent))
    return Request.from_engine_core_request(received, block_hasher=None)


@pytest.mark.parametrize(
    ("rule", "matching", "other"),
    [
        (ClassRule("c", min_prompt_tokens=9), request(prompt_tokens=9), request()),
        (ClassRule("c", min_max_tokens=99), request(max_tokens=99), request()),
        (ClassRule("c", lora="french"), request(lora=LORA), request()),
        (ClassRule("c", max_priority=-1), request(priority=-5), request()),
        (ClassRule("c", min_priority=1), request(priority=2), request(priority=-2)),
        (
            ClassRule("c", tenant="acme"),
            request(extra_args={"tenant": "acme"}),
            request(extra_args={"tenant": ["acme"]}),
        ),
        (
            ClassRule("c", streaming=True),
            request(output_kind=RequestOutputKind.DELTA),
            request(output_kind=RequestOutputKind.FINAL_ONLY),
        ),
        (
            ClassRule("c", streaming=False),
            request(output_kind=RequestOutputKind.FINAL_ONLY),
            request(output_kind=RequestOutputKind.DELTA),
        ),
    ],
)
def test_each_trait_is_read_off_a_request_of_vllm(
    clock: HandClock, rule: ClassRule, matching: Request, other: Request
) -> None:
    assert Door(clock, rule).class_of(matching) == "c"
    assert Door(clock, rule).class_of(other) == DEFAULT_CLASS


HOSTILE = ["naïve", '"', "a\nb", "\x00", "x" * 10**6, "{}", "\ud800", 'a"} 1\n# HELP', "", " vip"]


def test_failure_19_label_values_from_clients_are_bounded(clock: HandClock) -> None:
    door = Door(clock)
    claims = [*HOSTILE, *(f"class-{number}" for number in range(3000)), 7, 1.5, ["vip"]]
    arrived = request()
    for number, claim in enumerate(claims):
        arrived.request_id = str(number)
        arrived.sampling_params.extra_args = {"task_class": claim, "tenant": f"tenant-{number}"}
        door.class_of(arrived)
    labels = door.exported_labels()
    bounded = {"outcome", "le", "result", "state", "tier", "shortage", "reason"}
    assert labels.keys() - bounded == {"task_class"}
    assert all(CLASS_NAME.fullmatch(name) for name in labels["task_class"])
    assert labels["task_class"] == {"other", *(f"class-{number}" for number in range(MAX_NAMES))}


def test_a_tenant_never_becomes_a_label(clock: HandClock) -> None:
    door = Door(clock, ClassRule("partners", tenant="acme"))
    door.class_of(request("r1", extra_args={"tenant": "acme"}))
    for number, tenant in enumerate([*HOSTILE[:6], "someone"]):
        door.class_of(request(f"h{number}", extra_args={"tenant": tenant}))
    assert door.exported_labels()["task_class"] == {"partners", DEFAULT_CLASS}
