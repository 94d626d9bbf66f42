"""The tick on a virtual clock, a real store and a real model."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from virtual_clock import VirtualClock

from controlplane.dither import OFF, Dither
from controlplane.drift import prepare
from controlplane.errors import PrometheusUnreachable, StaleWindow
from controlplane.forecaster import Champion, Forecaster
from controlplane.guardrails import Bounds, default_shares
from controlplane.loop import ControlLoop, run_every
from controlplane.metrics import Metrics
from controlplane.modes import MissLimits, Standing
from controlplane.pilot import Pilot
from controlplane.publisher import Publisher
from controlplane.snapshot import Decision, Mode, Plan
from controlplane.store.sqlite import EventKind, SqliteStore
from controlplane.trials import Trials
from controlplane.wire import decision_from_wire, decision_to_wire
from models.bundle import Bundle, Provenance
from models.classes import TaskClass
from models.rule import rule_shares
from models.window import STEP_S, STEPS, Signal, Window

TICK_S = 5.0
STEP = 0.2
Latest = Callable[[], Plan]


class Prometheus:
    """Says what it is told to say."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.problem: Exception | None = None
        self.takes_s = 0.0
        self.violations_per_s = 1.0

    def fetch(self, end_unix_s: float) -> Window:
        self._clock.elapsed_s += self.takes_s
        if self.problem is not None:
            raise self.problem
        signals = {signal: np.ones((2, STEPS)) for signal in Signal}
        signals[Signal.VIOLATIONS_PER_S] *= self.violations_per_s
        signals[Signal.WAITING_PAST_SLO] *= self.violations_per_s
        return Window(end_unix_s, STEP_S, ("vip", "batch"), signals)


@pytest.fixture
def prometheus(clock: VirtualClock) -> Prometheus:
    return Prometheus(clock)


@pytest.fixture
def loop(
    *,
    task_classes: tuple[TaskClass, ...],
    prometheus: Prometheus,
    forecaster: Forecaster,
    publisher: Publisher,
    clock: VirtualClock,
    metrics: Metrics,
    trials: Trials,
) -> Iterator[ControlLoop]:
    prepare()  # as when a champion is loaded: a tick's end is on the real clock
    loop = ControlLoop(
        task_classes=task_classes,
        fetch=prometheus.fetch,
        forecaster=forecaster,
        publisher=publisher,
        limits=MissLimits(hold_after_missed=2, static_after_missed=6),
        tick_s=TICK_S,
        standing=Standing(Mode.STATIC, "first start, no window yet"),
        pilot=Pilot(
            task_classes,
            bounds=Bounds(max_log_share_step=STEP),
            dither=OFF,
            shares=default_shares(task_classes),
        ),
        clock=clock,
        metrics=metrics,
        trials=trials,
    )
    yield loop
    loop.close()


@pytest.fixture
def latest(publisher: Publisher) -> Latest:
    def plan() -> Plan:
        assert publisher.latest is not None
        return publisher.latest.plan

    return plan


async def test_first_snapshot_is_static_and_needs_no_window(
    loop: ControlLoop, latest: Latest, task_classes: tuple[TaskClass, ...]
) -> None:
    await loop.publish_first()
    assert latest().mode is Mode.STATIC
    assert latest().shares == pytest.approx(default_shares(task_classes))


async def test_without_champion_the_rule_decides_and_says_why(
    loop: ControlLoop, latest: Latest, prometheus: Prometheus, task_classes: tuple[TaskClass, ...]
) -> None:
    await loop.tick()
    plan = latest()
    rule = rule_shares(prometheus.fetch(0.0), task_classes)
    assert plan.mode is Mode.RULE
    assert plan.mode_reason == "no champion is loaded yet"
    assert plan.model_version is None
    assert [one.rule_share for one in plan.classes] == pytest.approx(rule)
    assert [one.residual for one in plan.classes] == [None, None]
    assert all(one.features for one in plan.classes)


async def test_champion_decides_and_leaves_its_reasons(
    loop: ControlLoop, latest: Latest, forecaster: Forecaster
) -> None:
    forecaster.swap(Champion("3", Bundle.untrained()))
    await loop.tick()
    plan = latest()
    assert (plan.mode, plan.model_version) == (Mode.LEARNED, "3")
    assert [one.residual for one in plan.classes] == pytest.approx([0.0, 0.0])
    assert {feature.name for feature in plan.classes[0].features} >= {"violation_fraction"}


async def test_weights_approach_the_forecast_step_by_step(
    loop: ControlLoop, latest: Latest, task_classes: tuple[TaskClass, ...]
) -> None:
    shares = [default_shares(task_classes)]
    for _ in range(40):
        await loop.tick()
        shares.append(np.array(latest().shares))
    moves = np.abs(np.diff(np.log(shares), axis=0))
    assert moves.max() <= STEP + 1e-9
    assert shares[-1][1] == pytest.approx(0.05)  # the floor of batch
    assert latest().classes[1].guardrails == ("floor",)


async def test_missed_windows_hold_then_turn_static_then_recover(
    loop: ControlLoop,
    latest: Latest,
    prometheus: Prometheus,
    task_classes: tuple[TaskClass, ...],
    metrics: Metrics,
) -> None:
    await loop.tick()
    good = latest().shares
    prometheus.problem = PrometheusUnreachable("timed out")
    seen = []
    for _ in range(7):
        await loop.tick()
        seen.append((latest().mode, latest().shares == good))
    hold, static = (Mode.HOLD, True), (Mode.STATIC, False)
    assert seen == [(Mode.RULE, True), hold, hold, hold, hold, static, static]
    assert latest().shares == pytest.approx(default_shares(task_classes))
    assert latest().mode_reason == "7 windows missed: timed out"
    assert metrics.missed_windows._value.get() == 7
    prometheus.problem = None
    await loop.tick()
    assert latest().mode is Mode.RULE
    assert loop.standing.missed_windows == 0


async def test_stale_window_holds_previous_weights(
    loop: ControlLoop, latest: Latest, prometheus: Prometheus
) -> None:
    await loop.tick()
    good = latest().shares
    prometheus.problem = StaleWindow(age_s=45.0, limit_s=20.0)
    await loop.tick()
    await loop.tick()
    assert latest().mode is Mode.HOLD
    assert latest().mode_reason.endswith(
        "the newest engine sample is 45.0 s old, the limit is 20 s"
    )
    assert latest().shares == good


async def test_champion_that_fails_gives_way_to_the_rule(
    loop: ControlLoop, latest: Latest, forecaster: Forecaster
) -> None:
    class Broken:
        def predict(self, *_: object) -> None:
            raise RuntimeError("shape mismatch")

    forecaster.swap(Champion("4", Broken()))
    await loop.tick()
    assert latest().mode is Mode.RULE
    assert latest().mode_reason == "champion 4 failed: shape mismatch"
    assert latest().model_version is None


async def test_swap_between_two_ticks_changes_the_model_version(
    loop: ControlLoop, latest: Latest, forecaster: Forecaster
) -> None:
    forecaster.swap(Champion("1", Bundle.untrained()))
    await loop.tick()
    before = latest().model_version
    forecaster.swap(Champion("2", Bundle.untrained(seed=1)))
    await loop.tick()
    assert (before, latest().model_version) == ("1", "2")


async def test_failure_28_a_drifted_model_gives_way_to_the_rule_and_a_retrain_is_asked_for(
    *,
    loop: ControlLoop,
    latest: Latest,
    forecaster: Forecaster,
    prometheus: Prometheus,
    clock: VirtualClock,
    store: SqliteStore,
    metrics: Metrics,
) -> None:
    plain = Bundle.untrained()
    forecaster.swap(Champion("3", Bundle(plain.network, Provenance("test", seed=0))))

    async def ticks(count: int) -> None:
        for _ in range(count):
            clock.elapsed_s += TICK_S
            await loop.tick()

    await ticks(120)  # it expects 0.5, of which 0.76 come
    assert (latest().mode, loop.retrain_reason) == (Mode.LEARNED, None)
    prometheus.violations_per_s = 0.0
    await ticks(40)
    assert latest().mode is Mode.RULE
    assert latest().mode_reason.startswith("drift: vip expected +0.")
    assert latest().model_version is None
    assert loop.retrain_reason is not None
    asked = [event for event in store.events() if event.kind is EventKind.RETRAIN_ASKED]
    assert len(asked) == 1
    assert metrics._retrain._value.get() == 1
    assert forecaster.serving_version == "3", "nothing was promoted"
    forecaster.swap(Champion("4", Bundle(plain.network, Provenance("test", seed=0))))
    await ticks(1)
    assert (latest().mode, loop.retrain_reason) == (Mode.LEARNED, None)


async def test_failure_24_decision_gauges_move_with_the_decisions_and_stay_in_bounds(
    loop: ControlLoop, prometheus: Prometheus, clock: VirtualClock, metrics: Metrics
) -> None:
    def sample(name: str, **labels: str) -> float:
        value = metrics.registry.get_sample_value(f"trimtab_controlplane_{name}", labels)
        assert value is not None
        return value

    seen = []
    for tick in range(20):
        prometheus.violations_per_s = max(0.0, 1.0 - tick / 10)  # a falling load
        clock.elapsed_s += TICK_S
        await loop.tick()
        weight = sample("class_weight", task_class="vip")
        seen.append(
            (
                sample("snapshot_version"),
                sample("snapshot_issued_unix_seconds"),
                sample("estimated_cost_ticks", of="played"),
                sample("estimated_cost_ticks", of="rule"),
            )
        )
        assert 0 < weight < 1
    for gauge in zip(*seen, strict=True):
        assert len(set(gauge)) == len(gauge), "stuck"
        assert min(gauge) >= 0


async def test_slow_prometheus_costs_its_tick_but_none_after_it(
    loop: ControlLoop, prometheus: Prometheus, clock: VirtualClock, publisher: Publisher
) -> None:
    times: list[float] = []

    async def tick() -> None:
        prometheus.takes_s = 12.0 if len(times) == 1 else 0.5
        times.append(clock.elapsed_s)
        if len(times) == 5:
            raise KeyboardInterrupt
        await loop.tick()

    with pytest.raises(KeyboardInterrupt):
        await run_every(clock, TICK_S, tick, lambda: pytest.fail("a tick failed"))
    assert times == [0.0, 5.0, 20.0, 25.0, 30.0]
    assert publisher.latest.version == 4


async def test_unknown_window_never_gives_an_unusable_weight(
    loop: ControlLoop, latest: Latest, forecaster: Forecaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals = {signal: np.full((2, STEPS), np.nan) for signal in Signal}
    blind = Window(0.0, STEP_S, ("vip", "batch"), signals)
    monkeypatch.setattr(loop, "_fetch", lambda end_unix_s: blind)  # noqa: ARG005 - the signature
    for champion in ("no champion is loaded yet", Champion("1", Bundle.untrained())):
        forecaster.swap(champion)
        await loop.tick()
        assert sum(latest().shares) == pytest.approx(1.0)
        assert np.isfinite(latest().shares).all()


async def test_dither_is_published_within_the_guardrails_and_kept_with_the_decision(
    loop: ControlLoop,
    latest: Latest,
    clock: VirtualClock,
    task_classes: tuple[TaskClass, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await loop.tick()
    assert [one.dither for one in latest().classes] == [None, None]
    monkeypatch.setattr(loop._pilot, "_dither", Dither(0.05, hold_s=TICK_S, seed=2))
    shares, seen = [], set()
    for _ in range(60):
        clock.elapsed_s += TICK_S
        await loop.tick()
        shares.append(np.array(latest().shares))
        seen.add(tuple(one.dither for one in latest().classes))
        assert decision_from_wire(decision_to_wire(Decision(1, 1, latest()))).plan == latest()
    assert len(seen) > 2
    assert np.abs(np.diff(np.log(shares), axis=0)).max() <= STEP + 1e-9
    assert np.min(shares, axis=0)[1] >= task_classes[1].floor - 1e-12
