import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.bundle import Bundle, Provenance
from models.classes import TaskClass
from models.lstm import ResidualLstm
from models.window import Window
from training.dataset import Examples, build_examples
from training.fit import FitOptions, WarmStart, fit
from training.online.anchor import Anchor
from training.online.batches import HalfAndHalf
from training.online.fine_tune import slowed, warm_start
from training.online.reservoir import Reservoir

BRIEF = FitOptions(max_epochs=4, learning_rate=5e-3, weight_decay=0.0)


@pytest.fixture(scope="module")
def examples(history: Window, classes: tuple[TaskClass, ...]) -> Examples:
    return build_examples([history], classes)


@pytest.fixture(scope="module")
def champion(examples: Examples) -> ResidualLstm:
    return fit(examples, FitOptions(max_epochs=8)).network


def distance(one: ResidualLstm, other: ResidualLstm) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return float(sum((a - b).square().sum() for a, b in pairs).detach()) ** 0.5


@given(recent=st.integers(1, 40), kept=st.integers(1, 40), size=st.integers(1, 16))
def test_half_of_each_batch_is_recent_and_half_is_kept(recent: int, kept: int, size: int) -> None:
    halves = HalfAndHalf(recent, kept, size)
    batches = list(halves)
    assert len(batches) == len(halves)
    fresh = [index for batch in batches for index in batch if index < recent]
    old = [index - recent for batch in batches for index in batch if index >= recent]
    assert sorted(fresh) == list(range(recent)), "an epoch sees each recent example once"
    for batch in batches:
        assert sum(index < recent for index in batch) * 2 == len(batch)
    counts = np.bincount(old, minlength=kept)
    assert counts.max() - counts.min() <= 1, "the kept ones come in turn"


def test_penalty_is_half_the_squared_distance_and_pulls_back() -> None:
    network = torch.nn.Linear(2, 1)
    anchor = Anchor(network, strength=3.0)
    assert float(anchor.penalty(network).detach()) == 0
    with torch.no_grad():
        network.weight += 2.0
    penalty = anchor.penalty(network)
    assert float(penalty.detach()) == pytest.approx(3.0 / 2 * (4.0 + 4.0))
    penalty.backward()
    assert network.weight.grad is not None
    assert network.weight.grad.tolist() == [[pytest.approx(6.0), pytest.approx(6.0)]]
    assert network.bias.grad is not None
    assert float(network.bias.grad) == 0


def test_negative_strength_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 0"):
        Anchor(ResidualLstm(), -1.0)


def test_stronger_anchor_keeps_the_network_nearer(
    examples: Examples, champion: ResidualLstm
) -> None:
    near, far = (
        fit(examples, BRIEF, warm=WarmStart(champion, strength, kept=None)).network
        for strength in (100.0, 0.0)
    )
    assert distance(near, champion) < 0.5 * distance(far, champion)


def test_fine_tuning_starts_from_the_champion_and_leaves_it_alone(
    examples: Examples, champion: ResidualLstm
) -> None:
    before = {name: tensor.clone() for name, tensor in champion.state_dict().items()}
    still = FitOptions(max_epochs=1, learning_rate=0.0)
    fitted = fit(examples, still, warm=WarmStart(champion, 0.01, examples, champion))
    for name, tensor in champion.state_dict().items():
        assert torch.equal(tensor, before[name]), name
        assert torch.equal(fitted.network.state_dict()[name], tensor), name
    assert fitted.metrics["champion_loss"] == pytest.approx(
        fitted.metrics["validation_loss"], rel=1e-5
    )
    assert fitted.metrics["gain_over_champion_ratio"] == pytest.approx(0, abs=1e-5)


def test_kept_examples_are_not_forgotten(examples: Examples, champion: ResidualLstm) -> None:
    """New windows say the opposite of the old ones; with these in each batch both are learned."""
    opposite = Examples(examples.features, 1 - examples.target, examples.mask)
    options = FitOptions(max_epochs=10, learning_rate=5e-3, patience_epochs=10)

    def loss_on_old(kept: Examples | None) -> float:
        network = fit(opposite, options, warm=WarmStart(champion, 0.0, kept)).network
        with torch.inference_mode():
            predicted = torch.sigmoid(network.logits(torch.from_numpy(examples.features))).numpy()
        return float(np.abs(predicted - examples.target)[examples.mask].mean())

    assert loss_on_old(examples) < loss_on_old(None)


def test_untrained_champion_is_nothing_to_go_on_from(classes: tuple[TaskClass, ...]) -> None:
    assert warm_start(None, (), classes) is None
    assert warm_start(Bundle.untrained(), (), classes) is None


def test_reservoir_of_other_classes_still_teaches(
    history: Window, classes: tuple[TaskClass, ...], champion: ResidualLstm
) -> None:
    reservoir = Reservoir(50)
    reservoir.offer_all(history.between(0, 60))
    bundle = Bundle(champion, Provenance("violation-forecast", seed=0))
    fewer = warm_start(bundle, reservoir.moments, classes[:1])
    assert fewer is not None
    assert fewer.kept is not None
    assert fewer.kept.features.shape[1] == 1
    empty = warm_start(bundle, (), classes)
    assert empty is not None
    assert empty.kept is None


def test_fine_tuning_is_slower_than_a_fresh_fit() -> None:
    fresh = FitOptions(seed=7)
    slow = slowed(fresh)
    assert slow.learning_rate < fresh.learning_rate
    assert slow.weight_decay == 0
    assert slow.max_epochs < fresh.max_epochs
    assert slow.seed == 7
