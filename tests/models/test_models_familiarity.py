import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from window_examples import BATCH, VIP, Measured, measured_windows, window

from models.bundle import MANIFEST_FILE, Bundle, Provenance
from models.errors import CorruptBundle
from models.familiarity import LEAST_WIDTH, FeatureRanges
from models.features import FEATURE_NAMES, encode

F = len(FEATURE_NAMES)


def _bundle(ranges: FeatureRanges | None) -> Bundle:
    plain = Bundle.untrained()
    return Bundle(plain.network, Provenance("test", seed=0), ranges=ranges)


@given(st.integers(0, 2**32 - 1))
def test_what_was_learned_from_is_nearly_all_familiar(seed: int) -> None:
    features = np.random.default_rng(seed).normal(size=(200, 2, 12, F)).astype(np.float32)
    ranges = FeatureRanges.of(features)
    assert ranges.excess(features.reshape(-1, 1, F)).mean() < 0.01


def test_excess_is_the_distance_of_the_strangest_value_in_widths() -> None:
    ranges = FeatureRanges((0.0,) * F, (2.0,) * F)
    features = np.ones((3, 12, F), dtype=np.float32)
    features[1, 4, 7] = 5.0
    features[1, 5, 0] = -1.0
    features[2, 11, 3] = -0.5
    assert ranges.excess(features) == pytest.approx([0.0, 1.5, 0.25])


def test_a_feature_that_never_varied_has_a_width_all_the_same() -> None:
    ranges = FeatureRanges((1.0,) * F, (1.0,) * F)
    features = np.full((1, 12, F), 1.0 + LEAST_WIDTH / 2, dtype=np.float32)
    assert ranges.excess(features) == pytest.approx([0.5])


def test_ranges_travel_with_the_bundle_and_are_compared_at_inference(tmp_path: Path) -> None:
    traffic = window((VIP, BATCH))
    ranges = FeatureRanges.of(encode(traffic, (VIP, BATCH)))
    _bundle(ranges).save(tmp_path)
    loaded = Bundle.load(tmp_path)
    assert loaded.ranges == ranges
    assert loaded.predict(traffic, (VIP, BATCH)).unfamiliarity == pytest.approx([0.0, 0.0])
    flood = window((VIP, BATCH), default=1e6)
    assert loaded.predict(flood, (VIP, BATCH)).unfamiliarity.min() > 1.0


def test_a_bundle_of_an_older_release_loads_and_takes_every_window_for_known(
    tmp_path: Path,
) -> None:
    _bundle(None).save(tmp_path)
    path = tmp_path / MANIFEST_FILE
    document = json.loads(path.read_text())
    del document["feature_ranges"]
    path.write_text(json.dumps(document))
    loaded = Bundle.load(tmp_path)
    flood = window((VIP, BATCH), default=1e6)
    assert loaded.predict(flood, (VIP, BATCH)).unfamiliarity.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    "ranges",
    [
        [],
        {"low": [0.0]},
        {"low": [0.0], "high": [1.0]},
        {"low": [1.0] * F, "high": [0.0] * F},
        {"low": ["x"] * F, "high": [0.0] * F},
        {"low": [None] * F, "high": [0.0] * F},
    ],
)
def test_ranges_that_are_none_make_a_corrupt_bundle(tmp_path: Path, ranges: object) -> None:
    _bundle(None).save(tmp_path)
    path = tmp_path / MANIFEST_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), "feature_ranges": ranges}))
    with pytest.raises(CorruptBundle, match="no bundle manifest"):
        Bundle.load(tmp_path)


@given(measured_windows())
def test_unfamiliarity_is_a_finite_number_for_every_window(measured: Measured) -> None:
    bundle = _bundle(FeatureRanges((0.0,) * F, (1.0,) * F))
    strange = bundle.predict(*measured).unfamiliarity
    assert np.isfinite(strange).all()
    assert (strange >= 0).all()
