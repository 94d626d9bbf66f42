"""The simulator beside the real engine, on the same arrivals.

The engine is swept first. What is compared then are load levels that the sweep did not
see, a saturated engine, and how policies rank.
"""

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from benchmarks.client import Replay, replay
from benchmarks.errors import EngineRefused
from benchmarks.results import summarise
from benchmarks.sim.arrivals import as_arrivals
from benchmarks.sim.comparison import (
    LatencyRow,
    latency_rows,
    mean_errors,
    rank_correlation,
    worst_errors,
)
from benchmarks.sim.recording import Recording
from benchmarks.sim.simulated import simulated_replay
from benchmarks.sim.sweep import Sweep, SweepPlan
from benchmarks.stack.engine import MODEL_NAME, VllmEngine
from benchmarks.stack.snapshot_server import SnapshotServer
from controlplane.snapshot import ClassPolicy, Discipline, Mode, Snapshot
from models.classes import TaskClass
from training.simulator.calibration import Calibration
from training.simulator.model import Fleet, Preemption
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
    policy_s: float = 30.0
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


@dataclass(frozen=True, slots=True)
class Fidelity:
    """What was found.

    Attributes:
        step_errors: mean absolute relative error of a step's time, by load.
        real_value_ratio: share of the value that met its SLO, by policy.
    """

    calibration: Calibration
    capacity_requests_per_s: float
    step_errors: Mapping[float, float]
    rows: Sequence[LatencyRow]
    real_tokens_per_s: float
    simulated_tokens_per_s: float
    real_value_ratio: Mapping[str, float]
    simulated_value_ratio: Mapping[str, float]

    def as_json(self) -> dict[str, object]:
        """The parts of a result file."""
        return {
            "step_mape": float(np.mean(list(self.step_errors.values()))),
            **mean_errors(self.rows),
            "throughput_err": abs(self.simulated_tokens_per_s / self.real_tokens_per_s - 1),
            "kendall_tau": rank_correlation(self.real_value_ratio, self.simulated_value_ratio),
            "worst": worst_errors(self.rows),
            "rows": [{**asdict(row), "error_ratio": row.error_ratio} for row in self.rows],
            "step_mape_by_load": {f"{load:g}": error for load, error in self.step_errors.items()},
            "tokens_per_s": {
                "real": self.real_tokens_per_s,
                "simulated": self.simulated_tokens_per_s,
            },
            "value_ratio": {
                "real": dict(self.real_value_ratio),
                "simulated": dict(self.simulated_value_ratio),
            },
            "calibration": {**asdict(self.calibration), "hash": self.calibration.hash},
            "capacity_requests_per_s": self.capacity_requests_per_s,
        }


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
        fleet = _fleet(calibration)
        loads = [await self._at_load(load, capacity, calibration) for load in self.plan.loads]
        real_tokens_per_s, simulated_tokens_per_s = await self._saturated(fleet)
        real_ratios, simulated_ratios = await self._policies(fleet, capacity)
        return Fidelity(
            calibration=calibration,
            capacity_requests_per_s=capacity,
            step_errors={
                load: error for load, (error, _) in zip(self.plan.loads, loads, strict=True)
            },
            rows=[row for _, rows in loads for row in rows],
            real_tokens_per_s=real_tokens_per_s,
            simulated_tokens_per_s=simulated_tokens_per_s,
            real_value_ratio=real_ratios,
            simulated_value_ratio=simulated_ratios,
        )

    async def _at_load(
        self, load: float, capacity_requests_per_s: float, calibration: Calibration
    ) -> tuple[float, list[LatencyRow]]:
        """Error of the step time, and every class's latencies."""
        scenario = self._scenario(load * capacity_requests_per_s, self.plan.load_s)
        start_s = time.perf_counter()
        real = await self._real(_POLICY, scenario, f"load {load:g}")
        steps = Recording.read(self.engine.metrics).between(start_s, time.perf_counter())
        fleet = _fleet(calibration)
        simulated = simulated_replay(scenario, fleet, POLICIES[_POLICY])
        error_ratio = steps.samples.error_ratio(calibration.coefficients)
        return error_ratio, latency_rows(load, real.answers, simulated.answers)

    async def _saturated(self, fleet: Fleet) -> tuple[float, float]:
        """Tokens per second, real and simulated, of requests that all arrive at once."""
        load = simultaneous(self.traffic, self.plan.saturating_requests, self.seed + 2)
        scenario = Scenario.steady("saturated", load)
        real = await self._real(_POLICY, scenario, "saturated")
        simulated = simulated_replay(scenario, fleet, POLICIES[_POLICY])
        return load.total_tokens / real.span_s, load.total_tokens / simulated.span_s

    async def _policies(
        self, fleet: Fleet, capacity_requests_per_s: float
    ) -> tuple[dict[str, float], dict[str, float]]:
        """What each policy makes of the same arrivals, real and simulated."""
        scenario = self._scenario(
            self.plan.policy_load * capacity_requests_per_s, self.plan.policy_s
        )
        real: dict[str, float] = {}
        simulated: dict[str, float] = {}
        for name, policy in self.plan.policies.items():
            real[name] = value_ratio(await self._real(name, scenario, name), self._classes)
            run = simulated_replay(scenario, fleet, policy)
            simulated[name] = value_ratio(run, self._classes)
        return real, simulated

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


def _fleet(calibration: Calibration) -> Fleet:
    # Clients name the tokens that they want as ``max_tokens``, and get as many.
    return Fleet(calibration.engine, declares_output=True, preemption=PREEMPTION)


def value_ratio(run: Replay, classes: Sequence[TaskClass]) -> float:
    """Share of the requests' value that met its SLO."""
    result = summarise([run], classes)
    total = sum(own.value * own.n for own in result.classes.values())
    return result.goodput_value_per_s * run.span_s / total


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
