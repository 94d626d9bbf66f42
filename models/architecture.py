"""The one network shape in use. Part of the schema hash; imports no torch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Architecture:
    """Sizes of the residual network.

    Attributes:
        layers: stacked LSTM layers.
        hidden: LSTM state size H.
        head_hidden: width of the head's hidden layer.
        bound: largest residual, in log-odds. Two weights' ratio moves by at most
            e^(2 * bound), a factor of 150 at 2.5: what a wrong model can cost, and what a
            right one can gain.
    """

    layers: int = 2
    hidden: int = 64
    head_hidden: int = 32
    bound: float = 2.5


ARCHITECTURE = Architecture()
