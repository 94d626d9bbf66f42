"""The breaker: the engine sheds load by itself when memory or step times are in trouble.

    CLOSED     nothing is held back
    DEGRADED   P1 is treated as P2
    OPEN       moreover P2 and REST are not admitted
    HALF_OPEN  P2 and REST are admitted at a low rate, to see whether the trouble comes back

Trouble is both at once: more than ``max_incidents_per_s`` allocation failures and
preemptions within the last second, and slow steps: the mean of those that ended in the last
0.1 s is above ``max(slow_step_floor_s, slow_step_ratio * usual)``. The usual step time is a
median over minutes, so that one setting does for engines of any speed, and an engine that
has become slower for good is not in trouble for ever.

    CLOSED -> DEGRADED      trouble
    DEGRADED -> OPEN        trouble at every step for open_after_s
    OPEN -> HALF_OPEN       after the cool-down
    HALF_OPEN -> OPEN       trouble; the cool-down doubles, up to max_cool_down_s
    DEGRADED, HALF_OPEN -> CLOSED   quiet_s without trouble

0.1 s after all steps became slow the last 0.1 s hold only slow steps, so with enough incidents
the breaker is open ``0.1 + open_after_s`` and two steps later: within 0.5 s for steps of up to
0.1 s. A longer slow step is trouble at once, and the first step that ends ``open_after_s``
later opens: within 0.5 s for steps of up to 0.3 s; between longer ones nothing is decided.

The three transitions that make things better depend on the time alone: the breaker recovers
on an engine that has nothing to do, and asking changes nothing.
"""

import statistics
from collections import deque
from dataclasses import dataclass, replace
from enum import IntEnum

from dataplane.config import BreakerSettings
from dataplane.weights import Tier

INCIDENT_WINDOW_S = 1.0
LATENCY_WINDOW_S = 0.1
MEDIAN_TIME_S = 60.0
FIRST_STEPS = 31
"""Steps before the usual step time is known."""


class BreakerState(IntEnum):
    """The larger, the less is admitted; but for HALF_OPEN, which comes after OPEN."""

    CLOSED = 0
    DEGRADED = 1
    OPEN = 2
    HALF_OPEN = 3


@dataclass(frozen=True, slots=True)
class Phase:
    """A state, since when it holds, and how long OPEN lasts or lasted."""

    state: BreakerState
    since_s: float
    cool_down_s: float


class UsualStepTime:
    """A slow median of step times: O(1) memory and time.

    It starts as the median of the first steps. Then each step moves it toward itself by a
    factor ``1 + step_time / MEDIAN_TIME_S``, whatever the distance: it comes to rest where as
    much time is spent in longer steps as in shorter ones. So it is the median over time,
    which is what requests see, and one long step hardly moves it. (Moving by the sign alone
    is Frugal-1U of Ma, Muthukrishnan and Sandler 2013, "Frugal streaming for estimating
    quantiles".)
    """

    def __init__(self) -> None:
        self._first_s: list[float] = []
        self.median_s: float | None = None

    def add(self, step_time_s: float) -> None:
        """Learn from a step."""
        if self.median_s is None:
            self._first_s.append(step_time_s)
            if len(self._first_s) == FIRST_STEPS:
                self.median_s = statistics.median(self._first_s)
            return
        move = 1.0 + step_time_s / MEDIAN_TIME_S
        if step_time_s > self.median_s:
            self.median_s = min(step_time_s, self.median_s * move)
        else:
            self.median_s = max(step_time_s, self.median_s / move)


class TroubleWatch:
    """Sees trouble in the steps of the last second."""

    def __init__(self, settings: BreakerSettings) -> None:
        self._settings = settings
        self._incidents: deque[tuple[float, int]] = deque()
        self._incident_count = 0
        self._step_times_s: deque[tuple[float, float]] = deque()
        self.usual = UsualStepTime()

    @property
    def threshold_s(self) -> float | None:
        """Above which steps are slow; None: not known yet."""
        usual_s = self.usual.median_s
        if usual_s is None:
            return None
        return max(self._settings.slow_step_floor_s, self._settings.slow_step_ratio * usual_s)

    def step(self, now_s: float, step_time_s: float, incidents: int) -> bool:
        """Whether there is trouble, as of the end of this step."""
        threshold_s, latency_s = self.threshold_s, self._latency_s(now_s, step_time_s)
        self.usual.add(step_time_s)
        slow = threshold_s is not None and latency_s > threshold_s
        many = self._recent_incidents(now_s, incidents) > self._settings.max_incidents_per_s
        return slow and many

    def _latency_s(self, now_s: float, step_time_s: float) -> float:
        steps = self._step_times_s
        steps.append((now_s, step_time_s))
        while steps[0][0] <= now_s - LATENCY_WINDOW_S:
            steps.popleft()
        return sum(seconds for _, seconds in steps) / len(steps)

    def _recent_incidents(self, now_s: float, incidents: int) -> int:
        recent = self._incidents
        if incidents:
            recent.append((now_s, incidents))
            self._incident_count += incidents
        while recent and recent[0][0] <= now_s - INCIDENT_WINDOW_S:
            self._incident_count -= recent.popleft()[1]
        return self._incident_count


class Trial:
    """Lets one through at a time, ``per_s`` in the long run."""

    def __init__(self, per_s: float) -> None:
        self._interval_s = 1.0 / per_s
        self._next_s = 0.0

    def wait_s(self, now_s: float) -> float:
        """Until the next may go; 0: now."""
        return max(0.0, self._next_s - now_s)

    def admitted(self, now_s: float) -> None:
        """One went."""
        self._next_s = now_s + self._interval_s


class Breaker:
    """The state machine.

    Any thread may ask for ``state`` and ``retry_after_s``; all other calls come from the
    scheduler's thread.

    Attributes:
        trips: times that trouble led to DEGRADED and to OPEN.
        refused: answers of ``admits`` that were no, by tier.
    """

    def __init__(self, settings: BreakerSettings) -> None:
        self._settings = settings
        self._watch = TroubleWatch(settings)
        self._trial = Trial(settings.trial_admissions_per_s)
        self._phase = Phase(BreakerState.CLOSED, 0.0, settings.cool_down_s)
        self._trouble_since_s: float | None = None
        self._last_trouble_s = 0.0
        self.trips = {BreakerState.DEGRADED: 0, BreakerState.OPEN: 0}
        self.refused = dict.fromkeys(Tier, 0)

    def step(self, now_s: float, step_time_s: float, incidents: int) -> None:
        """Take note of a step of the engine that did work and ended now.

        Args:
            now_s: monotonic.
            step_time_s: how long it took.
            incidents: allocation failures and preemptions since the last call.
        """
        if not self._settings.enabled:
            return
        if not self._watch.step(now_s, step_time_s, incidents):
            self._trouble_since_s = None
            return
        state = self.state(now_s)
        self._last_trouble_s = now_s
        if self._trouble_since_s is None or state is BreakerState.CLOSED:
            self._trouble_since_s = now_s
        self._worsen(state, now_s, lasted_s=now_s - self._trouble_since_s)

    def state(self, now_s: float) -> BreakerState:
        """The state at this time."""
        return self._phase_at(now_s).state

    def tier(self, tier: Tier, now_s: float) -> Tier:
        """How the tier is treated at this time by the reserve and by preemption."""
        degraded = tier is Tier.P1 and self.state(now_s) is not BreakerState.CLOSED
        return Tier.P2 if degraded else tier

    def admits(self, tier: Tier, now_s: float, *, running: int) -> bool:
        """Whether a head of this tier may start, now that so many requests run.

        Args:
            tier: as configured; a P1 that is treated as P2 still starts, as else an engine
                whose operator set no tiers would stop altogether.
            now_s: monotonic.
            running: with nothing running there is nothing to relieve, so anyone may start.
        """
        if tier <= Tier.P1 or not running or not self.retry_after_s(now_s):
            return True
        self.refused[tier] += 1
        return False

    def admitted(self, tier: Tier, now_s: float) -> None:
        """Take note that a request of this tier started."""
        if tier > Tier.P1:
            self._trial.admitted(now_s)

    def retry_after_s(self, now_s: float) -> float:
        """Until P2 and REST may start; 0: now."""
        phase = self._phase_at(now_s)
        if phase.state is BreakerState.OPEN:
            return phase.since_s + phase.cool_down_s - now_s
        return self._trial.wait_s(now_s) if phase.state is BreakerState.HALF_OPEN else 0.0

    def _worsen(self, state: BreakerState, now_s: float, *, lasted_s: float) -> None:
        settings = self._settings
        if state is BreakerState.HALF_OPEN:
            longer_s = min(2.0 * self._phase.cool_down_s, settings.max_cool_down_s)
            self._trip(BreakerState.OPEN, now_s, longer_s)
        if state is BreakerState.CLOSED:
            self._trip(BreakerState.DEGRADED, now_s, settings.cool_down_s)
        if state <= BreakerState.DEGRADED and lasted_s >= settings.open_after_s:
            self._trip(BreakerState.OPEN, now_s, settings.cool_down_s)

    def _trip(self, state: BreakerState, now_s: float, cool_down_s: float) -> None:
        self._phase = Phase(state, now_s, cool_down_s)
        self.trips[state] += 1

    def _phase_at(self, now_s: float) -> Phase:
        """The last phase that trouble led to, and what time has made of it since."""
        phase = self._phase
        if phase.state is BreakerState.OPEN and now_s >= phase.since_s + phase.cool_down_s:
            since_s = phase.since_s + phase.cool_down_s
            phase = replace(phase, state=BreakerState.HALF_OPEN, since_s=since_s)
        if phase.state in (BreakerState.DEGRADED, BreakerState.HALF_OPEN):
            since_s = max(phase.since_s, self._last_trouble_s) + self._settings.quiet_s
            if now_s >= since_s:
                phase = replace(phase, state=BreakerState.CLOSED, since_s=since_s)
        return phase
