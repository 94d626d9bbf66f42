"""Which weights to try around those in question.

Shapes: K candidates, C classes.
"""

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]

COORDINATE_STEP = 0.7
"""Of a class's log-share, up and down: a factor of two."""
RADII = (0.35, 0.7, 1.4)
"""Of random directions, in turn."""


def candidate_log_shares(wanted: Float, rule: Float, count: int, rng: np.random.Generator) -> Float:
    """[K, C] normalised log-shares: the two given, each class up and down, random directions.

    Args:
        wanted: [C] log-shares that the policy wants.
        rule: [C] log-shares of the rule.
        count: K; at least 2, or as many as the fixed ones are.
        rng: of the directions.
    """
    classes = len(wanted)
    coordinates = COORDINATE_STEP * np.concatenate([np.eye(classes), -np.eye(classes)])
    fixed = np.stack([wanted, rule, *(wanted + coordinates)])  # [2 + 2C, C]
    directions = rng.normal(size=(max(0, count - len(fixed)), classes))
    directions -= directions.mean(axis=1, keepdims=True)
    directions /= np.maximum(np.linalg.norm(directions, axis=1, keepdims=True), 1e-9)
    radii = np.resize(RADII, len(directions))[:, None]
    return normalised(np.concatenate([fixed, wanted + radii * directions])[:count])


def normalised(log_weights: Float) -> Float:
    """Log-weights [..., C] as log-shares: their exponentials sum to 1."""
    largest = log_weights.max(axis=-1, keepdims=True)
    total = np.log(np.exp(log_weights - largest).sum(axis=-1, keepdims=True))
    shares: Float = log_weights - largest - total
    return shares


def centred(log_shares: Float) -> Float:
    """Without what does not matter: log-shares [..., C] whose mean is 0."""
    rest: Float = log_shares - log_shares.mean(axis=-1, keepdims=True)
    return rest
