import os
import sys

import pytest

from benchmarks.stack.cores import core_for_engine


@pytest.mark.skipif(sys.platform != "linux", reason="affinity is Linux's")
def test_the_engines_core_is_left_alone_meanwhile_and_given_back() -> None:
    before = os.sched_getaffinity(0)
    with core_for_engine() as core:
        if len(before) > 1:
            assert core in before
            assert os.sched_getaffinity(0) == before - {core}
    assert os.sched_getaffinity(0) == before


@pytest.mark.skipif(sys.platform != "linux", reason="affinity is Linux's")
def test_a_single_core_is_shared() -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        with core_for_engine() as core:
            assert core is None
            assert os.sched_getaffinity(0) == {min(before)}
    finally:
        os.sched_setaffinity(0, before)
