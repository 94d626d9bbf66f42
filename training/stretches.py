"""What of a history is learned from, and what is held out to be judged on.

The history is cut into stretches of equal length, of which every fifth is held out, the newest
among them: by day and by night alike, where the newest fifth in one piece would be one night.
"""

from dataclasses import dataclass

from models.window import STEPS, Signal, Window, known

LONGEST_STEPS = 60
"""Of a stretch: five minutes, in which queues build up and go."""
SHORTEST_STEPS = STEPS // 2
"""In the shortest of histories."""
EVERY = 5
"""One of so many is held out."""


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """Windows in the order of time, none of which overlap.

    Attributes:
        learned: what lies between the stretches that are held out; each as long as it comes.
        held_out: stretches; none where nothing is.
    """

    learned: tuple[Window, ...]
    held_out: tuple[Window, ...] = ()

    def learnable(self, moment: Window) -> bool:
        """Whether a window that was kept earlier is free of what is held out."""
        start_unix_s = moment.end_unix_s - moment.steps * moment.step_s
        return not any(
            start_unix_s < one.end_unix_s
            and moment.end_unix_s > one.end_unix_s - one.steps * one.step_s
            for one in self.held_out
        )


def split(history: Window) -> Split:
    """Hold stretches out; they are the shorter, the shorter the history is.

    What lies before the first measurement is left out.
    """
    first = _first_measured(history)
    steps = history.steps - first
    length = min(LONGEST_STEPS, max(SHORTEST_STEPS, steps // EVERY))
    learned: list[Window] = []
    held_out: list[Window] = []
    stop = history.steps
    while stop - first >= length:
        held_out.append(history.between(stop - length, stop))
        start = max(first, stop - EVERY * length)
        learned.append(history.between(start, stop - length))
        stop = start
    if stop > first:
        learned.append(history.between(first, stop))
    nonempty = [one for one in reversed(learned) if one.steps]
    return Split(tuple(nonempty), tuple(reversed(held_out)))


def _first_measured(history: Window) -> int:
    """The first step of which anything is known; 0 where nothing ever is."""
    measured = known(history.signals[Signal.ARRIVALS_PER_S]).any(axis=0)  # [T]
    return int(measured.argmax())
