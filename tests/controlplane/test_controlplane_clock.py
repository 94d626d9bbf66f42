import contextlib

from virtual_clock import VirtualClock

from controlplane.clock import SystemClock, ticks
from controlplane.loop import run_every


async def test_ticks_are_due_on_absolute_deadlines() -> None:
    clock = VirtualClock()
    seen = []
    async for number in ticks(clock, 5.0):
        seen.append((number, clock.elapsed_s))
        clock.elapsed_s += 1.7  # the work of a tick
        if number == 3:
            break
    assert seen == [(0, 0.0), (1, 5.0), (2, 10.0), (3, 15.0)]


async def test_overrun_skips_ticks_instead_of_bunching_them() -> None:
    clock = VirtualClock()
    seen = []
    async for number in ticks(clock, 5.0):
        seen.append((number, clock.elapsed_s))
        if number == 1:
            clock.elapsed_s += 12.0  # from 5 to 17: ticks 2 and 3 are over
        if number == 5:
            break
    assert seen == [(0, 0.0), (1, 5.0), (4, 20.0), (5, 25.0)]


async def test_a_day_of_ticks_does_not_drift() -> None:
    clock = VirtualClock()
    async for number in ticks(clock, 5.0):
        assert clock.elapsed_s == number * 5.0
        clock.elapsed_s += 0.3
        if clock.elapsed_s > 86_400:
            break
    assert number == 17_280


async def test_a_failing_step_is_counted_and_the_next_one_runs() -> None:
    clock = VirtualClock()
    failures = []
    runs = []

    async def step() -> None:
        runs.append(clock.elapsed_s)
        if len(runs) == 2:
            raise RuntimeError("a defect")
        if len(runs) == 4:
            raise KeyboardInterrupt  # what no broad catch may swallow

    with contextlib.suppress(KeyboardInterrupt):
        await run_every(clock, 5.0, step, lambda: failures.append(clock.elapsed_s))
    assert runs == [0.0, 5.0, 10.0, 15.0]
    assert failures == [5.0]


async def test_system_clock_sleeps_until_the_deadline() -> None:
    clock = SystemClock()
    deadline_s = clock.now_s() + 0.05
    await clock.sleep_until(deadline_s)
    assert clock.now_s() >= deadline_s
    await clock.sleep_until(deadline_s - 10)  # long over: no waiting, no error
