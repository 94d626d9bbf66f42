"""A test that may be looked at after every observation."""

import math

_BETS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95)
"""Stakes, as parts of the wealth; a small one finds small effects in noise, a large one big
effects at once."""


class BettingTest:
    """Evidence against "the mean is at most 0", for observations that are at least -1.

    Whoever stakes a part b of the wealth on each x holds ``prod(1 + b x)``. When the mean,
    given the past, is at most 0, that is a non-negative supermartingale, and so is the mean
    over several b. By Ville's inequality it ever exceeds 1 / alpha with probability alpha at
    most, however often one looks and whenever one stops (Waudby-Smith and Ramdas 2024,
    "Estimating means of bounded random variables by betting", JRSS B 86, section 4; the mixture
    over stakes is Robbins' 1970, "Statistical methods related to the law of the iterated
    logarithm", Annals of Mathematical Statistics 41).
    """

    def __init__(self) -> None:
        self._log_wealth = [0.0] * len(_BETS)

    def update(self, observation: float) -> None:
        """Take one observation.

        Raises:
            ValueError: it is below -1, or no number.
        """
        if not (math.isfinite(observation) and observation >= -1.0):
            raise ValueError(f"observations are at least -1, got {observation}")
        for index, bet in enumerate(_BETS):
            self._log_wealth[index] += math.log1p(bet * observation)

    @property
    def log_evidence(self) -> float:
        """Logarithm of the mean wealth."""
        most = max(self._log_wealth)
        mean = sum(math.exp(one - most) for one in self._log_wealth) / len(_BETS)
        return most + math.log(mean)

    def rejects(self, alpha: float) -> bool:
        """Whether the mean is above 0, wrong with probability ``alpha`` at most over all time."""
        return self.log_evidence >= -math.log(alpha)
