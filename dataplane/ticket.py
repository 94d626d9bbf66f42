"""What the plugin remembers of one live request."""

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Ticket:
    """One request from arrival to end. Times are on this process's monotonic clock.

    Attributes:
        max_tokens: the most tokens that it may generate; None: as many as fit.
        stops_on_text: whether it ends when a given text comes up. vLLM looks for the text
            outside of the engine and then aborts the request here.
        place: position among all waiting requests, smaller is earlier; the queue gives it.
        dispatched_s: when it first got onto the engine; None: not yet.
        first_token_s: end of the step that gave its first token; None: not yet.
        generated_tokens: output tokens when last looked at.
        admission: position among the running requests in order of admission.
        admitted_s: when it last got onto the engine.
        preemptions: how often it was sent back to the queue.
        displaced: how often of these for a request of more weight.
        running: whether it is running now.
        overdue: whether it was seen to wait past its TTFT objective before it was dispatched.
        charged_tokens: work that its class was charged for it under ``wfq``; 0: nothing.
    """

    request_id: str
    task_class: str
    arrived_s: float
    prompt_tokens: int = 0
    max_tokens: int | None = None
    stops_on_text: bool = False
    place: int = 0
    dispatched_s: float | None = None
    first_token_s: float | None = None
    generated_tokens: int = 0
    admission: int = 0
    admitted_s: float = 0.0
    preemptions: int = 0
    displaced: int = 0
    running: bool = False
    overdue: bool = False
    charged_tokens: float = 0.0
