from dataclasses import dataclass
from typing import Any

import pytest
from loopback_control_plane import HandClock

from dataplane.faults import FaultBarrier
from dataplane.intake import Intake
from dataplane.labels import ClassLabels
from dataplane.meter import Meter, Outcome, Tally
from dataplane.progress import Ending, Progress
from dataplane.ticket import Ticket
from dataplane.weights import WeightTable


@dataclass
class Parameters:
    stop: Any = None
    extra_args: Any = None
    max_tokens: int | None = None


@dataclass
class LiveRequest:
    request_id: str = "r1"
    arrival_time: float = 0.0
    num_prompt_tokens: int = 9
    sampling_params: Any = None
    priority: int = 0
    lora_request: Any = None
    num_output_tokens: int = 0
    num_computed_tokens: int = 0


class Story:
    """A progress with everything that it tells."""

    def __init__(self, clock: HandClock) -> None:
        self.meter = Meter()
        self.ended: list[Ticket] = []
        self.intake = Intake(
            meter=self.meter,
            labels=ClassLabels(4),
            table=lambda _: WeightTable.initial(),
            barrier=FaultBarrier(),
            clock=clock,
        )
        self.progress = Progress(
            meter=self.meter,
            intake=self.intake,
            table=lambda _: WeightTable.initial(),
            on_end=self.ended.append,
        )

    def arrives(self, **fields: Any) -> LiveRequest:
        request = LiveRequest(arrival_time=HandClock().wall_s(), **fields)
        self.intake.ticket_of(request)
        return request

    @property
    def tally(self) -> Tally:
        (tally,) = self.meter.tallies.values()
        return tally


@pytest.fixture
def story(clock: HandClock) -> Story:
    return Story(clock)


def test_the_first_token_is_that_of_the_first_step_that_gave_one(story: Story) -> None:
    request = story.arrives()
    story.progress.admitted([request], 1001.0)
    story.progress.step_ended(1002.0)
    request.num_output_tokens = 1
    story.progress.step_ended(1003.0)
    request.num_output_tokens = 2
    story.progress.step_ended(1004.0)
    assert list(story.tally.ttft_s) == pytest.approx([3.0])


def test_output_is_counted_while_the_request_runs_and_once(story: Story) -> None:
    request = story.arrives()
    story.progress.admitted([request], 1001.0)
    request.num_output_tokens = 5
    story.progress.count([request])
    story.progress.count([request])
    assert story.tally.generated_tokens == 5
    request.num_output_tokens = 7
    story.progress.ended(request, Ending.DONE, 1002.0)
    assert story.tally.generated_tokens == 7


def test_a_request_that_ends_with_its_first_token_has_one(story: Story) -> None:
    request = story.arrives()
    story.progress.admitted([request], 1001.0)
    request.num_output_tokens = 1
    story.progress.ended(request, Ending.DONE, 1002.0)
    story.progress.step_ended(1003.0)
    assert list(story.tally.ttft_s) == pytest.approx([2.0])


def test_an_end_that_is_told_twice_counts_once(story: Story) -> None:
    request = story.arrives()
    story.progress.ended(request, Ending.ABORTED, 1002.0)
    story.progress.ended(request, Ending.ABORTED, 1002.0)
    assert story.tally.finished[Outcome.ABORTED] == 1
    assert story.meter.live == 0
    assert len(story.ended) == 1


def test_a_preempted_request_loses_what_was_computed_and_keeps_what_was_said(story: Story) -> None:
    request = story.arrives(num_output_tokens=3)
    story.progress.admitted([request], 1001.0)
    story.progress.preempted(request, computed_tokens=12)
    assert story.tally.recomputed_tokens == 12
    assert story.tally.generated_tokens == 3
    assert story.tally.waiting_prompt_tokens == 9
    story.progress.admitted([request], 1005.0)
    assert story.tally.waiting_prompt_tokens == 0


@pytest.mark.parametrize(
    ("ending", "stop", "outcome"),
    [
        (Ending.DONE, None, Outcome.MET),
        (Ending.FAILED, None, Outcome.FAILED),
        (Ending.ABORTED, None, Outcome.ABORTED),
        (Ending.ABORTED, ["."], Outcome.MET),
    ],
)
def test_how_it_ended_is_told(
    story: Story, ending: Ending, stop: list[str] | None, outcome: Outcome
) -> None:
    """The front end aborts a request whose text to stop at it has found."""
    request = story.arrives(sampling_params=Parameters(stop=stop), num_output_tokens=4)
    story.progress.admitted([request], 1001.0)
    story.progress.ended(request, ending, 1002.0)
    assert story.tally.finished[outcome] == 1


def test_nothing_is_remembered_of_requests_that_ended(story: Story) -> None:
    for number in range(50):
        request = story.arrives(request_id=str(number))
        story.progress.admitted([request], 1001.0)
        story.progress.ended(request, Ending.DONE, 1002.0)
    assert not story.intake.tickets
    assert story.intake.task_class_of(LiveRequest("0")) == "default"
    assert not story.intake.tickets
