"""A simulated run in the form of a measured one: the same figures are made of both."""

from dataclasses import replace

import numpy as np

from benchmarks.client import Answer, Replay
from benchmarks.results import PolicyResult, summarise
from benchmarks.sim.arrivals import as_arrivals
from training.simulator.model import Fleet
from training.simulator.play import Played, play
from training.simulator.policies import Policy
from training.simulator.scenario import Scenario

_ERROR = "an error of the scenario's"


def simulated_replay(scenario: Scenario, fleet: Fleet, policy: Policy) -> Replay:
    """What a client would have seen."""
    played = play(scenario, replace(fleet, discipline=policy.discipline), policy.shares)
    return as_replay(scenario, played)


def simulated_result(scenario: Scenario, fleet: Fleet, policy: Policy) -> PolicyResult:
    """The figures of one policy on one scenario."""
    played = play(scenario, replace(fleet, discipline=policy.discipline), policy.shares)
    result = summarise([as_replay(scenario, played)], scenario.workload.classes)
    return replace(
        result, preemptions=played.preemptions, recomputed_tokens=played.recomputed_tokens
    )


def as_replay(scenario: Scenario, played: Played) -> Replay:
    """One answer for each request, in the order of arrival."""
    columns = zip(
        as_arrivals(scenario.workload),
        played.ttft_s.tolist(),
        played.e2e_s.tolist(),
        scenario.fails.tolist(),
        strict=True,
    )
    answers = tuple(
        Answer(arrival, None, None, 0, _ERROR)
        if fails
        else Answer(arrival, ttft_s, e2e_s, arrival.output_tokens)
        for arrival, ttft_s, e2e_s, fails in columns
    )
    ends_s = scenario.workload.arrival_s + played.e2e_s
    return Replay(answers, span_s=float(np.max(ends_s, initial=0.0)))
