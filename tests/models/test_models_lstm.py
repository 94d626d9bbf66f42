from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.architecture import ARCHITECTURE
from models.features import FEATURE_NAMES
from models.lstm import RESIDUAL, VIOLATION, WEIGHT, ResidualLstm
from models.window import STEPS

F = len(FEATURE_NAMES)


def some_features(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, STEPS, F, generator=torch.Generator().manual_seed(seed))


def trained_somehow(seed: int, scale: float = 1.0) -> ResidualLstm:
    """A network whose last layer is no longer zero."""
    generator = torch.Generator().manual_seed(seed)
    network = ResidualLstm().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3 * scale)
    return network


@torch.inference_mode()
def test_untrained_network_gives_the_rules_share_and_no_residual() -> None:
    features = some_features(0, 3)
    output = ResidualLstm()(features)
    rule = torch.sigmoid(features[:, -1, FEATURE_NAMES.index("rule_logit")])
    assert torch.equal(output[:, RESIDUAL], torch.zeros(3))
    assert torch.equal(output[:, WEIGHT], rule)
    assert torch.equal(output[:, VIOLATION], torch.full((3,), 0.5))


@torch.inference_mode()
@given(st.integers(0, 1000), st.integers(1, 6), st.sampled_from([0.1, 1.0, 100.0]))
def test_residuals_stay_within_the_bound(seed: int, classes: int, scale: float) -> None:
    residual = trained_somehow(seed, scale)(some_features(seed, classes))[:, RESIDUAL]
    assert residual.abs().max() <= ARCHITECTURE.bound


@torch.inference_mode()
@given(st.integers(0, 1000), st.integers(1, 6), st.randoms())
def test_permuting_classes_permutes_the_output(seed: int, classes: int, random: Random) -> None:
    network, features = trained_somehow(seed), some_features(seed, classes)
    order = random.sample(range(classes), classes)
    torch.testing.assert_close(network(features[order]), network(features)[order])


@torch.inference_mode()
def test_a_forecast_alone_moves_no_weight() -> None:
    network, features = trained_somehow(3), some_features(3, 5)
    network.emit.weight[0] = 0.0
    output = network(features)
    assert torch.equal(output[:, RESIDUAL], torch.zeros(5))
    assert output[:, VIOLATION].std() > 0.01


@torch.inference_mode()
def test_lone_class_is_never_moved() -> None:
    assert trained_somehow(1)(some_features(1, 1))[0, RESIDUAL] == 0.0


@torch.inference_mode()
def test_other_classes_change_what_a_class_gets() -> None:
    network, features = trained_somehow(2), some_features(2, 3)
    changed = features.clone()
    changed[2] = some_features(9, 1)[0]
    assert not torch.allclose(network.logits(features)[0], network.logits(changed)[0])


@torch.inference_mode()
def test_batch_gives_what_its_examples_give_one_by_one() -> None:
    network, features = trained_somehow(4), some_features(4, 7, 3)
    one_by_one = torch.stack([network.logits(example) for example in features])
    torch.testing.assert_close(network.logits(features), one_by_one)


@pytest.mark.filterwarnings("ignore:The tensor attributes:UserWarning")
@pytest.mark.parametrize("exported_with", [2, 5])
def test_exported_program_takes_any_number_of_classes(exported_with: int) -> None:
    network = trained_somehow(5)
    program = torch.export.export(
        network,
        (some_features(0, exported_with),),
        dynamic_shapes=({0: torch.export.Dim.AUTO},),
    ).module()
    with torch.inference_mode():
        for classes in (1, 2, 3, 17):
            features = some_features(classes, classes)
            np.testing.assert_allclose(program(features), network(features), rtol=1e-5)
