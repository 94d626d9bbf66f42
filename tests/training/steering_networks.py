"""Networks of known behaviour, and a history that a simulated fleet left."""

import torch

from models.architecture import ARCHITECTURE
from models.bundle import Bundle, Provenance
from models.features import DESCRIPTOR
from models.lstm import STEERING_ROW, ResidualLstm
from models.window import STEPS, Window
from training.closed_loop.controller import RuleController
from training.closed_loop.steer import steer
from training.regret.worlds import World
from training.rehearsal.traffic import joined
from training.simulator.calibration import REFERENCE_ENGINE
from training.simulator.model import Fleet
from training.simulator.traffic import REFERENCE, ClassTraffic

_ABOVE_ZERO = 20.0
"""Added to the logarithm of an SLO, so that no ReLU cuts it."""


def leaning(factor: float) -> Bundle:
    """Wants more than the rule for the classes in a hurry; for a negative factor, less."""
    network = ResidualLstm()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        column = 3 * ARCHITECTURE.hidden + DESCRIPTOR.index("log_ttft_slo_s")
        network.compare.weight[0, column] = -1.0
        network.compare.bias[0] = _ABOVE_ZERO
        network.emit.weight[STEERING_ROW, 0] = factor
    return Bundle(network.eval(), Provenance("test", seed=0))


def lived_history(
    duration_s: float,
    load: float,
    seed: int = 1,
    traffic: tuple[ClassTraffic, ...] = REFERENCE,
    regime: str = "stationary",
) -> Window:
    """What a fleet under the rule would have left in the metrics."""
    world = World(regime, traffic, Fleet(REFERENCE_ENGINE.engine), load, duration_s, seed)
    windows = steer(world.scenario(), world.fleet, RuleController()).windows
    return joined([windows[tick] for tick in range(STEPS, len(windows), STEPS)])
