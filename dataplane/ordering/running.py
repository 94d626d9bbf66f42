"""The order of what runs already."""


def running_rank(weight: float, *, prefilling: bool, memory_short: bool) -> tuple[bool, float]:
    """Sort key of a running request: small is served first and preempted last.

    vLLM spends a step's token budget in the order of its running list and takes memory
    away from the list's end. While memory suffices for whatever the step may ask, only the
    budget counts: requests that decode come first, since each takes one token and a long
    prompt in front of them would take them all; then prompts by weight. When memory may
    run short, the end of the list is a victim, and weight alone decides.
    """
    return (prefilling and not memory_short, -weight)
