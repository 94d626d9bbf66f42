"""What the engine has left at the beginning of a step."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Room:
    """Counts, none below 0.

    Attributes:
        slots_free: run slots that no request takes.
        blocks_free: KV blocks.
        step_tokens: most tokens of a step.
        chunk_tokens: of these, most that one prompt may take.
        kv_tokens: tokens in the KV blocks that are in use.
    """

    slots_free: int
    blocks_free: int
    step_tokens: int
    chunk_tokens: int
    kv_tokens: int
