import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save
from window_examples import BATCH, VIP, Measured, measured_windows, window

from models.architecture import ARCHITECTURE
from models.bundle import (
    MANIFEST_FILE,
    WEIGHTS_FILE,
    Bundle,
    Provenance,
    shifted_in_log_odds,
)
from models.errors import CorruptBundle, SchemaMismatch
from models.features import FEATURE_NAMES, encode, schema_hash
from models.lstm import ResidualLstm
from models.rule import rule_shares

CLASSES = (VIP, BATCH)


def trained_somehow(seed: int, scale: float = 1.0) -> Bundle:
    generator = torch.Generator().manual_seed(seed)
    network = ResidualLstm().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3 * scale)
    return Bundle(network=network, provenance=Provenance(origin="test", seed=seed))


@given(measured_windows())
def test_untrained_bundle_is_exactly_the_rule(measured: Measured) -> None:
    prediction = Bundle.untrained().predict(*measured)
    assert (prediction.weights == rule_shares(*measured)).all()
    assert (prediction.residuals == 0).all()


@given(measured_windows(min_classes=2), st.integers(0, 100))
def test_no_ratio_of_weights_moves_further_from_the_rule_than_the_bound(
    measured: Measured, seed: int
) -> None:
    prediction = trained_somehow(seed, scale=10.0).predict(*measured)
    assert np.isfinite(prediction.weights).all()
    assert (prediction.weights > 0).all()
    moved = np.log(prediction.weights / prediction.rule_shares)
    assert moved.max() - moved.min() <= 2 * ARCHITECTURE.bound + 1e-9


@given(measured_windows(), st.integers(0, 100))
def test_prediction_has_no_nan_and_one_row_per_class(measured: Measured, seed: int) -> None:
    traffic, classes = measured
    prediction = trained_somehow(seed).predict(traffic, classes)
    for rows in (prediction.weights, prediction.residuals, prediction.violation):
        assert rows.shape == (len(classes),)
        assert np.isfinite(rows).all()
    assert prediction.features.shape == (len(classes), len(FEATURE_NAMES))
    np.testing.assert_array_equal(prediction.features, encode(traffic, classes)[:, -1])


@given(st.floats(1e-6, 1 - 1e-6), st.floats(-0.5, 0.5))
def test_shift_in_log_odds_agrees_with_sigmoid_of_logit(share: float, residual: float) -> None:
    expected = 1 / (1 + math.exp(-(math.log(share / (1 - share)) + residual)))
    shifted = shifted_in_log_odds(np.array([share]), np.array([residual]))
    assert shifted == pytest.approx([expected])


def test_lone_class_keeps_weight_one() -> None:
    assert trained_somehow(1).predict(window([VIP]), [VIP]).weights == pytest.approx([1.0])


def test_seed_fixes_the_network_and_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    first, second, other = (Bundle.untrained(seed).network.state_dict() for seed in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["lstm.weight_ih_l0"], other["lstm.weight_ih_l0"])


def test_loaded_bundle_predicts_what_the_saved_one_did(tmp_path: Path) -> None:
    saved = trained_somehow(2)
    saved.save(tmp_path / "new" / "folder")
    loaded = Bundle.load(tmp_path / "new" / "folder")
    traffic = window(CLASSES)
    np.testing.assert_array_equal(
        loaded.predict(traffic, CLASSES).weights, saved.predict(traffic, CLASSES).weights
    )
    assert loaded.provenance == saved.provenance
    assert loaded.schema_hash == schema_hash()


def test_network_that_overflows_is_reported_instead_of_served() -> None:
    bundle = trained_somehow(2)
    with torch.no_grad():
        bundle.network.emit.weight.fill_(3e38)
        bundle.network.compare.weight.fill_(3e38)
    with pytest.raises(CorruptBundle, match="not finite"):
        bundle.predict(window(CLASSES), CLASSES)


def test_bundle_of_another_schema_is_refused_and_both_hashes_are_named(tmp_path: Path) -> None:
    Bundle.untrained().save(tmp_path)
    rewrite_manifest(tmp_path, schema_hash="feed")
    with pytest.raises(SchemaMismatch, match=f"schema feed, this process needs {schema_hash()}"):
        Bundle.load(tmp_path)


def rewrite_manifest(folder: Path, **changes: object) -> None:
    path = folder / MANIFEST_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def rewrite_weights(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    weights = save(tensors)
    (folder / WEIGHTS_FILE).write_bytes(weights)
    rewrite_manifest(folder, weights_sha256=hashlib.sha256(weights).hexdigest())


def flip_a_bit(folder: Path) -> None:
    path = folder / WEIGHTS_FILE
    weights = bytearray(path.read_bytes())
    weights[-1] ^= 1
    path.write_bytes(weights)


def put_nan(folder: Path) -> None:
    tensors = ResidualLstm().state_dict()
    tensors["emit.bias"][0] = math.nan
    rewrite_weights(folder, tensors)


def write_garbage_with_its_own_checksum(folder: Path) -> None:
    (folder / WEIGHTS_FILE).write_bytes(b"garbage")
    rewrite_manifest(folder, weights_sha256=hashlib.sha256(b"garbage").hexdigest())


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda folder: (folder / WEIGHTS_FILE).unlink(), "cannot read network.safetensors"),
        (lambda folder: (folder / MANIFEST_FILE).unlink(), "cannot read bundle.json"),
        (lambda folder: (folder / MANIFEST_FILE).write_text("{"), "no bundle manifest"),
        (lambda folder: (folder / MANIFEST_FILE).write_text("[1]"), "no bundle manifest"),
        (lambda folder: (folder / MANIFEST_FILE).write_text("{}"), "no bundle manifest"),
        (lambda folder: rewrite_manifest(folder, provenance={"by": "x"}), "no bundle manifest"),
        (flip_a_bit, "its manifest says"),
        (write_garbage_with_its_own_checksum, "does not fit the network"),
        (lambda folder: rewrite_weights(folder, {"x": torch.zeros(2)}), "does not fit the network"),
        (put_nan, "not finite"),
    ],
)
def test_damaged_bundle_is_refused(
    tmp_path: Path, damage: Callable[[Path], None], complaint: str
) -> None:
    Bundle.untrained().save(tmp_path)
    damage(tmp_path)
    with pytest.raises(CorruptBundle, match=complaint):
        Bundle.load(tmp_path)
