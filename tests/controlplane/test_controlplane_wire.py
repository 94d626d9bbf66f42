import pytest

from controlplane.snapshot import Discipline, Mode
from controlplane.status import ClassCounts, EngineStatus, QueueDepth, Report, Status, StepTimeSums
from controlplane.wire import report_from_wire, status_from_wire, status_to_wire
from protos.trimtab.v1 import weights_pb2

SUMS = StepTimeSums(7, 0.35, tuple(map(float, range(10))), (1.0, 2.0, 3.0, 4.0))


@pytest.mark.parametrize(
    "report",
    [
        None,
        Report(0, 0, neutral=True, kv_usage_ratio=0.0),
        Report(
            3,
            2,
            neutral=False,
            kv_usage_ratio=0.5,
            snapshot_age_s=1.5,
            queues=(QueueDepth("vip", 3, 2, 0.5),),
            step_time=SUMS,
            counts=(ClassCounts("vip", 9, 2),),
        ),
    ],
)
def test_a_status_comes_back_from_the_wire_as_it_was(report: Report | None) -> None:
    engine = EngineStatus("engine-1", "0.32.0", 3, "too old", report, stream=4)
    status = Status(2, 3, Mode.RULE, "no champion", Discipline.APQ, None, 0, (engine,), canary="5")
    assert status_from_wire(status_to_wire(status)) == status


@pytest.mark.parametrize(("gram", "moment"), [(9, 4), (10, 3), (0, 0), (16, 4)])
def test_sums_of_another_shape_are_not_known(gram: int, moment: int) -> None:
    sums = weights_pb2.StepTimeStats(steps=1, gram=[1.0] * gram, moment=[1.0] * moment)
    assert report_from_wire(weights_pb2.Report(step_time=sums)).step_time is None
