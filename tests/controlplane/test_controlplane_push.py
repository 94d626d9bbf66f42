"""The protocol over a real loopback stream."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

import grpc
import pytest
import pytest_asyncio
from door import Door
from google.protobuf.message import Message

from controlplane.snapshot import ClassDecision, Feature, Mode, Plan, Snapshot
from controlplane.status import QueueDepth, Report, StepTimeSums
from protos.trimtab.v1 import weights_pb2
from protos.trimtab.v1.weights_pb2_grpc import WeightsServiceStub

if TYPE_CHECKING:  # it lives in the stubs only
    from protos.trimtab.v1.weights_pb2_grpc import WeightsServiceAsyncStub

PATIENCE_S = 10.0
Publish = Callable[[], Awaitable[Snapshot]]
PLAN = Plan(
    Mode.RULE,
    "no champion",
    (
        ClassDecision("vip", 0.7, 0.7, None, (Feature("demand", None),), ("step",)),
        ClassDecision("batch", 0.3, 0.3, None, (Feature("demand", 0.5),)),
    ),
    window_end_unix_s=1_700_000_000.0,
)


class Engine:
    """An engine that answers only when told to."""

    def __init__(self, stub: "WeightsServiceAsyncStub", engine_id: str) -> None:
        self._call = stub.StreamWeights()
        self._engine_id = engine_id

    async def hello(self) -> "Engine":
        hello = weights_pb2.Hello(engine_id=self._engine_id, engine_version="0.32")
        await self.send(hello=hello)
        return self

    async def send(self, **body: Message) -> None:
        await self._call.write(weights_pb2.EngineMessage(**body))

    async def push(self) -> weights_pb2.Push:
        message = await asyncio.wait_for(self._call.read(), PATIENCE_S)
        assert isinstance(message, weights_pb2.ControlMessage), message
        return message.push

    async def ack(self, push: weights_pb2.Push) -> None:
        await self.send(ack=weights_pb2.Ack(nonce=push.nonce, version=push.snapshot.version))

    async def nack(self, push: weights_pb2.Push, reason: str) -> None:
        nack = weights_pb2.Nack(nonce=push.nonce, version=push.snapshot.version, reason=reason)
        await self.send(nack=nack)

    async def ended_with(self) -> grpc.StatusCode:
        return await asyncio.wait_for(self._call.code(), PATIENCE_S)

    def cut(self) -> None:
        self._call.cancel()


@pytest_asyncio.fixture
async def stub(door: Door) -> AsyncIterator["WeightsServiceAsyncStub"]:
    async with grpc.aio.insecure_channel(door.address) as channel:
        yield WeightsServiceStub(channel)


@pytest.fixture
def publish(door: Door) -> Publish:
    return lambda: door.publisher.publish(PLAN)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - what the server does sets no event here
            await asyncio.sleep(0.01)


async def test_engine_gets_the_newest_at_once_and_then_each_newer(
    door: Door, stub: "WeightsServiceAsyncStub", publish: Publish
) -> None:
    await publish()
    engine = await Engine(stub, "engine-1").hello()
    first = await engine.push()
    assert (first.snapshot.version, first.snapshot.epoch) == (1, 7)
    assert [policy.task_class for policy in first.snapshot.classes] == ["vip", "batch"]
    assert first.snapshot.rules[0].min_prompt_tokens == 4096
    await engine.ack(first)
    await publish()
    second = await engine.push()
    assert second.snapshot.version == 2
    await engine.ack(second)
    await _until(lambda: door.push.engines[0].acked_version == 2)


async def test_engine_that_connects_before_the_first_snapshot_waits_for_it(
    stub: "WeightsServiceAsyncStub", publish: Publish
) -> None:
    engine = await Engine(stub, "engine-1").hello()
    await asyncio.sleep(0.1)
    await publish()
    assert (await engine.push()).snapshot.version == 1


async def test_slow_engine_skips_to_the_newest(
    stub: "WeightsServiceAsyncStub", publish: Publish
) -> None:
    await publish()
    engine = await Engine(stub, "engine-1").hello()
    first = await engine.push()
    for _ in range(5):
        await publish()
    await engine.ack(first)
    assert (await engine.push()).snapshot.version == 6


async def test_engine_that_never_answers_still_gets_a_newer_one(
    stub: "WeightsServiceAsyncStub", publish: Publish
) -> None:
    await publish()
    engine = await Engine(stub, "engine-1").hello()
    await engine.push()
    await publish()
    assert (await engine.push()).snapshot.version == 2  # after the answer timeout


async def test_refused_snapshot_is_not_sent_again_but_a_newer_one_is(
    door: Door, stub: "WeightsServiceAsyncStub", publish: Publish
) -> None:
    await publish()
    engine = await Engine(stub, "engine-1").hello()
    await engine.nack(await engine.push(), "weight of vip is 0")
    await _until(lambda: door.push.engines[0].last_nack_reason == "weight of vip is 0")
    waiting = asyncio.create_task(engine.push())
    await asyncio.sleep(1.0)  # twice the answer timeout
    assert not waiting.done()
    await publish()
    assert (await waiting).snapshot.version == 2
    assert door.metrics.answers.labels("nack")._value.get() == 1


async def test_answer_with_a_stale_nonce_changes_nothing_and_blocks_nothing(
    door: Door, stub: "WeightsServiceAsyncStub", publish: Publish
) -> None:
    await publish()
    engine = await Engine(stub, "engine-1").hello()
    first = await engine.push()
    await publish()
    second = await engine.push()
    await engine.nack(first, "too late to say so")
    await engine.ack(second)
    await _until(lambda: door.push.engines[0].acked_version == 2)
    assert door.push.engines[0].last_nack_reason is None
    assert door.metrics.answers.labels("stale")._value.get() == 1
    await publish()
    assert (await engine.push()).snapshot.version == 3


async def test_reconnecting_engine_gets_the_newest_and_shows_once(
    door: Door, stub: "WeightsServiceAsyncStub", publish: Publish
) -> None:
    await publish()
    engine = await Engine(stub, "engine-1").hello()
    await engine.ack(await engine.push())
    again = await Engine(stub, "engine-1").hello()  # before the old stream is known to be dead
    assert (await again.push()).snapshot.version == 1
    engine.cut()
    await asyncio.sleep(0.1)
    assert [known.engine_id for known in door.push.engines] == ["engine-1"]
    again.cut()
    await _until(lambda: door.push.engines == ())


async def test_two_engines_each_have_their_own_pace(
    door: Door, stub: "WeightsServiceAsyncStub", publish: Publish
) -> None:
    await publish()
    quick = await Engine(stub, "engine-1").hello()
    slow = await Engine(stub, "engine-2").hello()
    await quick.ack(await quick.push())
    held = await slow.push()
    await publish()
    await quick.ack(await quick.push())
    await publish()
    await quick.ack(await quick.push())
    await slow.ack(held)
    assert (await slow.push()).snapshot.version == 3
    await _until(lambda: [known.acked_version for known in door.push.engines] == [3, 1])


async def test_report_shows_in_the_status(
    door: Door, stub: "WeightsServiceAsyncStub", publish: Publish
) -> None:
    await publish()
    engine = await Engine(stub, "engine-1").hello()
    depth = weights_pb2.ClassQueueDepth(task_class="vip", waiting=3, running=2, oldest_wait_s=0.5)
    await engine.send(
        report=weights_pb2.Report(
            applied_version=1,
            applied_epoch=7,
            neutral=True,
            kv_usage_ratio=0.25,
            queues=[depth],
            step_time=weights_pb2.StepTimeStats(
                steps=7, elapsed_s=0.35, gram=range(10), moment=range(4)
            ),
        )
    )
    await _until(lambda: bool(door.push.engines) and door.push.engines[0].last_report is not None)
    assert door.push.engines[0].last_report == Report(
        1,
        7,
        neutral=True,
        kv_usage_ratio=0.25,
        queues=(QueueDepth("vip", 3, 2, 0.5),),
        step_time=StepTimeSums(7, 0.35, tuple(map(float, range(10))), (0.0, 1.0, 2.0, 3.0)),
    )


@pytest.mark.parametrize("engine_id", ["", "x" * 129, "line\nbreak"])
async def test_engine_without_a_decent_name_is_turned_away(
    stub: "WeightsServiceAsyncStub", engine_id: str
) -> None:
    engine = await Engine(stub, engine_id).hello()
    assert await engine.ended_with() is grpc.StatusCode.INVALID_ARGUMENT


async def test_stream_that_does_not_begin_with_hello_is_turned_away(
    stub: "WeightsServiceAsyncStub",
) -> None:
    engine = Engine(stub, "engine-1")
    await engine.send(ack=weights_pb2.Ack(nonce="7-1"))
    assert await engine.ended_with() is grpc.StatusCode.INVALID_ARGUMENT
    silent = Engine(stub, "engine-2")
    assert await silent.ended_with() is grpc.StatusCode.INVALID_ARGUMENT


async def test_streams_past_the_limit_are_refused_and_a_free_place_is_used(
    door: Door, stub: "WeightsServiceAsyncStub", publish: Publish
) -> None:
    await publish()
    engines = [await Engine(stub, f"engine-{number}").hello() for number in range(3)]
    for engine in engines:
        await engine.push()
    refused = await Engine(stub, "engine-9").hello()
    assert await refused.ended_with() is grpc.StatusCode.RESOURCE_EXHAUSTED
    engines[0].cut()
    await _until(lambda: door.broadcast.listeners == 2)
    late = await Engine(stub, "engine-9").hello()
    assert (await late.push()).snapshot.version == 1


async def test_streams_that_have_not_said_hello_count_toward_the_limit(
    stub: "WeightsServiceAsyncStub",
) -> None:
    silent = [Engine(stub, f"engine-{number}") for number in range(8)]
    ends = sorted([await engine.ended_with() for engine in silent], key=lambda code: code.name)
    assert ends == [grpc.StatusCode.INVALID_ARGUMENT] * 3 + [grpc.StatusCode.RESOURCE_EXHAUSTED] * 5


async def test_storm_of_stale_refusals_is_counted_and_not_logged(
    door: Door,
    stub: "WeightsServiceAsyncStub",
    publish: Publish,
    capsys: pytest.CaptureFixture[str],
) -> None:
    await publish()
    engine = await Engine(stub, "engine-1").hello()
    push = await engine.push()
    for _ in range(100):
        await engine.nack(push, "no")
    await _until(lambda: door.metrics.answers.labels("stale")._value.get() == 99)
    printed = capsys.readouterr()
    assert (printed.out + printed.err).count("refused a snapshot") == 1


async def test_engine_with_an_endless_version_is_turned_away(
    stub: "WeightsServiceAsyncStub",
) -> None:
    engine = Engine(stub, "engine-1")
    await engine.send(hello=weights_pb2.Hello(engine_id="engine-1", engine_version="9" * 129))
    assert await engine.ended_with() is grpc.StatusCode.INVALID_ARGUMENT


async def test_streams_end_when_the_control_plane_drains(
    door: Door, stub: "WeightsServiceAsyncStub", publish: Publish
) -> None:
    await publish()
    engine = await Engine(stub, "engine-1").hello()
    await engine.push()
    door.broadcast.close()
    assert await engine.ended_with() is grpc.StatusCode.OK


async def test_watcher_sees_each_newer_snapshot(
    stub: "WeightsServiceAsyncStub", publish: Publish
) -> None:
    await publish()
    watch = stub.WatchWeights(weights_pb2.WatchWeightsRequest())
    first = await asyncio.wait_for(watch.read(), PATIENCE_S)
    assert first.version == 1
    await publish()
    second = await asyncio.wait_for(watch.read(), PATIENCE_S)
    assert second.version == 2
    watch.cancel()


async def test_get_before_the_first_snapshot_is_unavailable(
    stub: "WeightsServiceAsyncStub",
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.GetWeights(weights_pb2.GetWeightsRequest())
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_decision_tells_unknown_from_zero(
    stub: "WeightsServiceAsyncStub", publish: Publish
) -> None:
    await publish()
    decision = await stub.ExplainDecision(weights_pb2.ExplainDecisionRequest(version=1))
    vip, batch = decision.classes
    assert not vip.features[0].HasField("value")
    assert batch.features[0].value == 0.5
    assert not vip.HasField("residual")
    assert vip.rule_share == 0.7
    assert list(vip.guardrails) == ["step"]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.ExplainDecision(weights_pb2.ExplainDecisionRequest(version=2))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
