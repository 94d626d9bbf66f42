"""KV blocks, for the compiled kernel."""

from training.simulator.compiled import compiled
from training.simulator.scene import Scene


@compiled
def blocks_of(scene: Scene, tokens: int) -> int:
    """KV blocks for so many tokens."""
    return -(-tokens // scene.rules[0].block_tokens)


@compiled
def fits(scene: Scene, blocks: int, tokens: int) -> bool:
    """Whether the blocks hold so many tokens: a product is faster than a quotient."""
    return tokens <= blocks * scene.rules[0].block_tokens


@compiled
def known_tokens(scene: Scene, r: int) -> int:
    """Of a request's sequence: its prompt, and what it has generated."""
    return scene.work[r].prompt_tokens + scene.requests[r].generated


@compiled
def known_blocks(scene: Scene, r: int) -> int:
    """KV blocks for them."""
    return blocks_of(scene, known_tokens(scene, r))
