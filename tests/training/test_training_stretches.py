"""What is held out is not learned from, and the other way round nothing is wasted."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from models.window import STEP_S, Signal, Window
from training.stretches import EVERY, LONGEST_STEPS, SHORTEST_STEPS, split


def numbered(steps: int, unmeasured: int = 0) -> Window:
    """A history whose every step has a value of its own."""
    values = np.arange(steps, dtype=float)[None]
    values[:, :unmeasured] = np.nan
    return Window(1e6 + steps * STEP_S, STEP_S, ("vip",), dict.fromkeys(Signal, values))


def steps_of(windows: tuple[Window, ...]) -> list[float]:
    return [step for one in windows for step in one.signals[Signal.WAITING][0].tolist()]


@given(st.integers(1, 3000), st.integers(0, 400))
def test_every_measured_step_is_either_learned_from_or_held_out(
    steps: int, unmeasured: int
) -> None:
    unmeasured = min(unmeasured, steps - 1)
    parts = split(numbered(steps, unmeasured))
    learned, held_out = steps_of(parts.learned), steps_of(parts.held_out)
    assert sorted(learned + held_out) == list(range(unmeasured, steps))
    assert learned == sorted(learned)
    assert held_out == sorted(held_out)
    lengths = {one.steps for one in parts.held_out}
    assert lengths <= {min(LONGEST_STEPS, max(SHORTEST_STEPS, (steps - unmeasured) // EVERY))}
    if steps - unmeasured >= EVERY * SHORTEST_STEPS:
        assert len(held_out) < (steps - unmeasured) / 3
        assert held_out[-1] == steps - 1, "the newest is among them"


@given(st.integers(60, 3000))
def test_windows_know_when_they_were(steps: int) -> None:
    history = numbered(steps)
    parts = split(history)
    for one in (*parts.learned, *parts.held_out):
        newest = one.signals[Signal.WAITING][0, -1]
        assert one.end_unix_s == history.end_unix_s - (steps - 1 - newest) * STEP_S


def test_a_moment_that_was_kept_earlier_is_left_out_when_it_touches_what_is_held_out() -> None:
    history = numbered(300)  # the newest 60 steps are held out
    parts = split(history)
    assert steps_of(parts.held_out) == list(range(240, 300))
    learnable = [
        stop for stop in range(13, 301) if parts.learnable(history.between(stop - 13, stop))
    ]
    assert learnable == list(range(13, 241))
