import logging

import pytest

from dataplane.faults import FaultBarrier


def fail(barrier: FaultBarrier) -> None:
    with barrier:
        raise RuntimeError("of the plugin")


def test_a_fault_is_swallowed_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    barrier = FaultBarrier()
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            fail(barrier)
    assert barrier.faults == 3
    assert len(caplog.records) == 1
    assert "of the plugin" in caplog.records[0].getMessage()


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_being_told_to_end_is_no_fault(kind: type[BaseException]) -> None:
    barrier = FaultBarrier()
    with pytest.raises(kind), barrier:
        raise kind
    assert barrier.faults == 0
