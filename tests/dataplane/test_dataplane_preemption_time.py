"""Preemption by weight over minutes, in the stories that went wrong for others."""

import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from preemption_examples import SETTINGS, STAYS, head, names, runs

from dataplane.preemption import Refusal, RunningRequest, WeightPreemption
from dataplane.weights import Tier


def test_a_vip_that_finds_all_slots_full_of_long_work_waits_half_its_slack() -> None:
    preemption = WeightPreemption(SETTINGS)
    slots = [runs(f"long-{n}", admission=n, computed_tokens=100 * n) for n in range(1, 17)]
    arrived_s, step_s = 100.0, 0.02
    for step in range(100):
        now_s = arrived_s + step * step_s
        vip = head(weight=4.0, tier=Tier.P1, age_s=now_s - arrived_s)
        if preemption.considers(vip, now_s):
            victims = preemption.victims(vip, slots, prefill_tokens_per_s=2000.0, now_s=now_s)
            assert names(victims) == ["long-2"], "the one with the least to compute again, but one"
            assert vip.age_s == pytest.approx(0.4, abs=step_s)
            return
    pytest.fail("the VIP never got a place")


def test_at_three_times_the_load_recomputing_takes_no_more_than_its_share() -> None:
    preemption, minutes, prefill_tokens_per_s = WeightPreemption(SETTINGS), 10, 2000.0
    for second in range(60 * minutes):
        now_s = float(second)
        vip = head(request_id=f"vip-{second}")
        fresh = [STAYS, *(runs(f"r{second}-{n}", computed_tokens=900) for n in range(15))]
        if preemption.considers(vip, now_s):
            preemption.victims(vip, fresh, prefill_tokens_per_s=prefill_tokens_per_s, now_s=now_s)
    computed = prefill_tokens_per_s * 60 * (minutes + 1)
    share = SETTINGS.recompute_share
    assert 0.7 * share * computed < preemption.recomputed_tokens <= share * computed
    assert preemption.refused[Refusal.BUDGET] > 0


class FlippingEngine:
    """An engine with few slots and blocks, full of work, whose weights change at will."""

    SLOTS, BLOCKS, PREFILL_TOKENS_PER_S = 3, 30, 2000.0
    CLASSES = ("a", "b", "c")

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.preemption = WeightPreemption(SETTINGS)
        self.now_s = 100.0
        self.admissions = 0
        self.weights = dict.fromkeys(self.CLASSES, 1.0)
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self.displaced: set[tuple[int, int]] = set()

    def run(self, actions: int) -> None:
        for number in range(actions):
            if self.random.random() < 0.3:
                self.weights[self.random.choice(self.CLASSES)] = self.random.choice(
                    [0.1, 1, 1.4, 9]
                )
            if self.random.random() < 0.1 and self.running:
                self.running.remove(self.random.choice(self.running))
            if len(self.waiting) < 3:
                blocks = self.random.choice([1, 5, 20, 30])
                self.waiting.append(
                    Job(number, self.random.choice(self.CLASSES), blocks, self.now_s)
                )
            self.now_s += self.random.choice([0.1, 0.5, 1.5])
            self.step()

    def step(self) -> None:
        for job in sorted(self.waiting, key=lambda job: -self.weights[job.task_class]):
            if not self.fits(job):
                self.make_room(job)
            if self.fits(job):
                self.waiting.remove(job)
                self.running.append(job)
                self.admissions += 1
                job.admission, job.admitted_s = self.admissions, self.now_s

    def free_blocks(self) -> int:
        return self.BLOCKS - sum(job.blocks for job in self.running)

    def fits(self, job: "Job") -> bool:
        return len(self.running) < self.SLOTS and job.blocks <= self.free_blocks()

    def make_room(self, job: "Job") -> None:
        waiting = head(
            request_id=str(job.number),
            task_class=job.task_class,
            weight=self.weights[job.task_class],
            tier=Tier.P1,
            age_s=self.now_s - job.arrived_s,
            lacks_slot=len(self.running) >= self.SLOTS,
            lacks_blocks=max(0, job.blocks - self.free_blocks()),
            preemptions=job.preemptions,
        )
        if not self.preemption.considers(waiting, self.now_s):
            return
        victims = self.preemption.victims(
            waiting,
            [self.look_at(one) for one in self.running],
            prefill_tokens_per_s=self.PREFILL_TOKENS_PER_S,
            now_s=self.now_s,
        )
        for victim in victims:
            assert waiting.weight >= 1.5 * victim.weight
            one = next(one for one in self.running if str(one.number) == victim.request_id)
            self.running.remove(one)
            self.waiting.append(one)
            one.preemptions += 1
            assert one.preemptions <= SETTINGS.max_preemptions
            self.displaced.add((job.number, one.number))
        assert self.running or not victims, "the heaviest and first stays"

    def look_at(self, job: "Job") -> RunningRequest:
        ran_s = self.now_s - job.admitted_s
        return runs(
            str(job.number),
            weight=self.weights[job.task_class],
            tier=Tier.P1,
            ran_s=ran_s,
            admission=job.admission,
            computed_tokens=int(1000 * ran_s),
            blocks=job.blocks,
            preemptions=job.preemptions,
        )


@dataclass
class Job:
    number: int
    task_class: str
    blocks: int
    arrived_s: float
    admission: int = 0
    admitted_s: float = 0.0
    preemptions: int = 0


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**32))
def test_whatever_the_weights_do_nobody_preempts_in_turn_and_work_goes_on(seed: int) -> None:
    engine = FlippingEngine(seed)
    engine.run(actions=500)
    assert engine.displaced
    minutes = (engine.now_s - 100.0) / 60.0
    per_min = SETTINGS.recompute_share * engine.PREFILL_TOKENS_PER_S * 60.0
    assert engine.preemption.recomputed_tokens <= per_min * (1.0 + minutes)
    edges = engine.displaced
    while edges:
        leaves = {loser for _, loser in edges} - {winner for winner, _ in edges}
        assert leaves, f"they preempted each other in turn: {edges}"
        edges = {edge for edge in edges if edge[1] not in leaves}
