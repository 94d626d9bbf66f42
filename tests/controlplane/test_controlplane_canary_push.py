"""Two engines on real streams, one of which is a canary by turns."""

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import grpc
import pytest_asyncio
from door import Door

from controlplane.canary import Arm, Moment, Outcome, Trial, TrialLimits
from controlplane.publisher import CanaryPlan
from controlplane.snapshot import ClassDecision, Mode, Plan
from protos.trimtab.v1 import weights_pb2
from protos.trimtab.v1.weights_pb2_grpc import WeightsServiceStub

if TYPE_CHECKING:  # it lives in the stubs only
    from protos.trimtab.v1.weights_pb2_grpc import WeightsServiceAsyncStub

CANARY = "engine-2"


def _plan(vip: float, model: str) -> Plan:
    classes = (ClassDecision("vip", vip), ClassDecision("batch", 1 - vip))
    return Plan(Mode.LEARNED, f"model {model}", classes, model_version=model)


CHAMPION, CHALLENGER = _plan(0.7, "1"), _plan(0.4, "2")


class Engine:
    """Acknowledges whatever it is sent."""

    def __init__(self, stub: "WeightsServiceAsyncStub", engine_id: str) -> None:
        self._call = stub.StreamWeights()
        self._engine_id = engine_id

    async def hello(self) -> "Engine":
        hello = weights_pb2.Hello(engine_id=self._engine_id, engine_version="0.32")
        await self._call.write(weights_pb2.EngineMessage(hello=hello))
        return self

    async def runs(self) -> weights_pb2.Snapshot:
        message = await asyncio.wait_for(self._call.read(), 10.0)
        assert isinstance(message, weights_pb2.ControlMessage), message
        push = message.push
        ack = weights_pb2.Ack(nonce=push.nonce, version=push.snapshot.version)
        await self._call.write(weights_pb2.EngineMessage(ack=ack))
        return push.snapshot


@pytest_asyncio.fixture
async def engines(door: Door) -> AsyncIterator[tuple[Engine, Engine]]:
    async with grpc.aio.insecure_channel(door.address) as channel:
        stub = WeightsServiceStub(channel)
        yield await Engine(stub, "engine-1").hello(), await Engine(stub, CANARY).hello()


async def test_only_the_canary_runs_the_challenger_and_only_in_its_turns(
    door: Door, engines: tuple[Engine, Engine]
) -> None:
    canary = CanaryPlan(CHALLENGER, frozenset({CANARY}))
    models, versions = [], []
    for arm in (Arm.CHAMPION, Arm.CHALLENGER, Arm.CHALLENGER, Arm.CHAMPION):
        await door.publisher.publish(CHAMPION, canary if arm is Arm.CHALLENGER else None)
        snapshots = [await engine.runs() for engine in engines]
        models.append(tuple(snapshot.model_version for snapshot in snapshots))
        versions.append([snapshot.version for snapshot in snapshots])
    assert models == [("1", "1"), ("1", "2"), ("1", "2"), ("1", "1")]
    assert versions == [[1, 1], [3, 2], [5, 4], [6, 6]], "every engine sees only newer versions"


async def test_what_the_canary_runs_can_be_explained_and_is_not_what_others_are_told(
    door: Door, engines: tuple[Engine, Engine]
) -> None:
    published = await door.publisher.publish(CHAMPION, CanaryPlan(CHALLENGER, frozenset({CANARY})))
    plain, canary = [await engine.runs() for engine in engines]
    decision = await door.publisher.decision(canary.version)
    assert decision is not None
    assert decision.plan == CHALLENGER
    assert plain.version == published.version
    assert door.broadcast.latest == published
    assert door.publisher.latest is not None
    assert door.publisher.latest.plan == CHAMPION


async def test_a_harmful_challenger_is_stopped_and_its_engine_goes_back_at_once(
    door: Door, engines: tuple[Engine, Engine]
) -> None:
    trial, turns = Trial(TrialLimits()), 0
    arms = (Arm.CHALLENGER, Arm.CHAMPION)
    while trial.outcome is Outcome.GOES_ON:
        arm = arms[turns % 2]
        canary = CanaryPlan(CHALLENGER, frozenset({CANARY})) if arm is Arm.CHALLENGER else None
        await door.publisher.publish(CHAMPION, canary)
        snapshots = [await engine.runs() for engine in engines]
        # What the engine does with these weights: the fewer for vip, the more of them are late.
        late = 1.0 - snapshots[1].classes[0].weight
        trial.block_ended(Moment(turns, arm, counts=True), late)
        turns += 1
    assert trial.outcome is Outcome.HARM
    await door.publisher.publish(CHAMPION)
    assert [(await engine.runs()).model_version for engine in engines] == ["1", "1"]
