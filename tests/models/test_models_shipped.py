"""The release's own model, and what a registry starts with where it does not fit."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from window_examples import Measured, measured_windows

from models.bundle import MANIFEST_FILE, Bundle, Provenance
from models.features import FEATURE_NAMES, schema_hash
from models.shipped import FOLDER, first_bundle, first_record


def test_the_release_has_a_trained_model_of_its_own_schema() -> None:
    bundle = first_bundle()
    assert bundle.provenance.trained
    assert bundle.schema_hash == schema_hash()
    assert bundle.provenance.calibration_hash is not None
    assert bundle.ranges is not None
    assert len(bundle.ranges.low) == len(FEATURE_NAMES)
    assert "docs/learning.md" in first_record(bundle).description


@settings(max_examples=20, deadline=None)
@given(measured=measured_windows(min_classes=2))
def test_the_releases_model_has_weights_for_whatever_is_measured(measured: Measured) -> None:
    prediction = first_bundle().predict(*measured)
    assert np.isfinite(prediction.weights).all()
    assert (prediction.weights > 0).all()


@pytest.mark.parametrize("damage", ["absent", "another schema", "no model"])
def test_without_a_model_that_fits_a_registry_starts_with_the_rule(
    tmp_path: Path, damage: str
) -> None:
    folder = tmp_path / "base"
    if damage != "absent":
        Bundle(Bundle.untrained(1).network, Provenance("regret", 1)).save(folder)
        manifest = json.loads((folder / MANIFEST_FILE).read_text())
        manifest["schema_hash" if damage == "another schema" else "weights_sha256"] = "0"
        (folder / MANIFEST_FILE).write_text(json.dumps(manifest))
    bundle = first_bundle(folder)
    assert not bundle.provenance.trained
    assert first_record(bundle).name == "untrained"
    assert not bundle.network.emit.weight.any()  # it corrects nothing


def test_the_model_lies_where_packages_are_built_from() -> None:
    assert FOLDER.name == "base"
    assert (FOLDER / MANIFEST_FILE).exists()
