"""The simulator beside the real engine, on the same arrivals.

The engine is swept first. What is compared then are load levels that the sweep did not
see, a saturated engine, and how policies rank.
"""

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.client import Replay, replay
from benchmarks.errors import EngineRefused
from benchmarks.sim.arrivals import as_arrivals
from benchmarks.sim.findings import FOLLOWED, SWEPT, Fidelity, Pair, Side
from benchmarks.sim.recording import Recording
from benchmarks.sim.simulated import simulated_replay
from benchmarks.sim.sweep import Sweep, SweepPlan
from benchmarks.stack.engine import MODEL_NAME, VllmEngine
from benchmarks.stack.snapshot_server import SnapshotServer
from controlplane.snapshot import ClassPolicy, Discipline, Mode, Snapshot
from models.classes import TaskClass
from training.simulator.calibration import Calibration
from training.simulator.model import EngineModel, Fleet, Preemption
from training.simulator.play import slowed
from training.simulator.policies import POLICIES, Policy
from training.simulator.regimes import draw_scenario
from training.simulator.scenario import Scenario
from training.simulator.traffic import ClassTraffic, simultaneous

PREEMPTION = Preemption()
"""By weight, on both sides."""
_POLICY = "apq"
"""Under which latencies and throughput are compared."""
_PROMPTS = 1_000_000
"""Sets these runs' prompts apart from the sweep's."""


@dataclass(frozen=True, slots=True)
class FidelityPlan:
    """What is compared.

    Attributes:
        loads: relative to the capacity; none of the sweep's.
        load_s: arrivals go on for so long at each load.
        policy_load: at which the policies are ranked.
        policy_s: likewise for each policy.
        saturating_requests: at once, for the throughput.
        policies: to be ranked.
    """

    loads: Sequence[float] = (0.6, 0.8, 1.1)
    load_s: float = 60.0
    policy_load: float = 1.3
    policy_s: float = 40.0
    saturating_requests: int = 100
    policies: Mapping[str, Policy] = field(default_factory=lambda: dict(POLICIES))

    @classmethod
    def quick(cls) -> "FidelityPlan":
        """Enough to see that it works; too short to judge by."""
        few = {name: POLICIES[name] for name in ("fcfs", "apq")}
        return cls(loads=(0.7,), load_s=8.0, policy_s=6.0, saturating_requests=16, policies=few)

    @property
    def runs(self) -> int:
        """Real runs, without those of the sweep."""
        return len(self.loads) + len(self.policies) + 1


@dataclass(slots=True)
class Comparison:
    """Runs the plan.

    Args:
        engine: started with the recording scheduler, following ``snapshots``.
        traffic: the mix.
        seed: of arrivals and prompts.
        begin: is told what comes next.
    """

    engine: VllmEngine
    snapshots: SnapshotServer
    traffic: Sequence[ClassTraffic]
    seed: int
    begin: Callable[[str], None]
    plan: FidelityPlan = field(default_factory=FidelityPlan)
    sweep_plan: SweepPlan = field(default_factory=SweepPlan)
    _runs: int = field(default=0, init=False)

    async def run(self) -> Fidelity:
        """Sweep, then compare.

        Raises:
            BenchmarkError: a request failed, or a policy did not come into force.
            NotEnoughSteps: the sweep is too short.
        """
        await self._apply(_POLICY)
        sweep = Sweep(self.engine, self.traffic, self.seed, self.begin, self.sweep_plan)
        calibration, capacity = await sweep.run()
        loads = {
            load: await self._beside(
                _POLICY,
                self._scenario(load * capacity, self.plan.load_s),
                calibration,
                f"load {load:g}",
            )
            for load in self.plan.loads
        }
        saturated = await self._beside(_POLICY, self._saturating(), calibration, "saturated")
        rush = self._scenario(self.plan.policy_load * capacity, self.plan.policy_s)
        policies = {
            name: await self._beside(name, rush, calibration, name) for name in self.plan.policies
        }
        return Fidelity(calibration, capacity, self._classes, loads, saturated, policies)

    async def _beside(
        self, policy: str, scenario: Scenario, calibration: Calibration, what: str
    ) -> Pair:
        """The real engine, then the simulator on the same arrivals."""
        start_s = time.perf_counter()
        real = await self._real(policy, scenario, what)
        steps = Recording.read(self.engine.metrics).between(start_s, time.perf_counter()).samples
        slowness = steps.slowness(calibration.coefficients)
        return Pair(
            workload=scenario.workload,
            real=real,
            slowness=slowness,
            sides={
                name: Side(
                    steps.error_ratio(factor * calibration.coefficients),
                    simulated_replay(
                        scenario, _fleet(slowed(calibration.engine, factor)), POLICIES[policy]
                    ),
                )
                for name, factor in ((SWEPT, 1.0), (FOLLOWED, slowness))
            },
        )

    def _saturating(self) -> Scenario:
        load = simultaneous(self.traffic, self.plan.saturating_requests, self.seed + 2)
        return Scenario.steady("saturated", load)

    @property
    def _classes(self) -> tuple[TaskClass, ...]:
        return tuple(kind.task_class for kind in self.traffic)

    def _scenario(self, requests_per_s: float, duration_s: float) -> Scenario:
        self._runs += 1
        return draw_scenario(
            "stationary",
            self.traffic,
            requests_per_s=requests_per_s,
            duration_s=duration_s,
            seed=self.seed + 100 + self._runs,
        )

    async def _real(self, policy: str, scenario: Scenario, what: str) -> Replay:
        self.begin(f"the real engine: {what}")
        await self._apply(policy)
        self._runs += 1
        run = await replay(
            as_arrivals(scenario.workload),
            url=self.engine.url,
            model=MODEL_NAME,
            seed=(self.seed, _PROMPTS + self._runs),
        )
        failures = [answer.failure for answer in run.answers if answer.failure is not None]
        if failures:
            raise EngineRefused(f"a request failed: {failures[0]}", fix="read the engine's log")
        return run

    async def _apply(self, name: str) -> None:
        snapshot = policy_snapshot(POLICIES[name], self._classes)
        await asyncio.to_thread(self.snapshots.publish, name, snapshot)


def _fleet(engine: EngineModel) -> Fleet:
    # Clients name the tokens that they want as ``max_tokens``, and get as many.
    return Fleet(engine, declares_output=True, preemption=PREEMPTION)


def policy_snapshot(policy: Policy, classes: Sequence[TaskClass]) -> Snapshot:
    """What an engine is told of a policy."""
    shares = policy.shares(classes).tolist()
    return Snapshot(
        version=0,
        epoch=1,
        issued_at_unix_s=0.0,
        ttl_s=math.ldexp(1.0, 20),
        mode=Mode.STATIC,
        mode_reason="a comparison of policies",
        discipline=Discipline(policy.discipline.value),
        classes=tuple(
            ClassPolicy(kind, share, share) for kind, share in zip(classes, shares, strict=True)
        ),
    )
