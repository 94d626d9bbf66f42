"""`make bench-learning`, in little."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.learning.bundles import NoSuchModel, models_of
from benchmarks.learning.settings import REGIMES
from benchmarks.learning.units import POLICIES
from controlplane.config import RegistrySection
from models.bundle import Bundle
from models.classes import LatePolicy
from models.registry import Registry, RegistryLocation
from models.shipped import first_bundle


def bench(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "benchmarks.learning", "--quick", *arguments)
    journal = ("--journal", str(folder / "journal.jsonl"), "--json", str(folder / "out.json"))
    return subprocess.run(
        [*command, *journal], capture_output=True, text=True, timeout=550, check=False
    )


@pytest.mark.system
def test_the_table_has_every_regime_and_policy_and_a_second_run_does_nothing_again(
    tmp_path: Path,
) -> None:
    for name in ("one", "another"):
        Bundle.untrained().save(tmp_path / name)
    models = [f"--model={name}={tmp_path / name}" for name in ("one", "another")]
    first = bench(tmp_path, *models)
    assert first.returncode == 0, first.stdout + first.stderr
    written = json.loads((tmp_path / "out.json").read_text())
    assert {"machine", "versions", "command", "seed", "regimes", "summary"} <= written.keys()
    assert set(written["regimes"]) == {f"{one}/{late}" for one in REGIMES for late in LatePolicy}
    for name, found in written["regimes"].items():
        assert set(found["loss"]) == {*POLICIES, "another"}
        assert set(found["worst_class_attainment"]) == set(found["loss"])
        # Untrained weights are the rule's, and the oracle began from the best static ones.
        assert found["loss"]["learned"] == pytest.approx(found["loss"]["rule"]), name
        assert found["loss"]["another"] == pytest.approx(found["loss"]["rule"]), name
    assert {one["held"] for one in written["summary"]["goals"]} <= {True, False, None}
    assert all(policy in first.stdout for policy in (*POLICIES, "another"))
    kept = (tmp_path / "journal.jsonl").read_text()
    for line in kept.splitlines():
        result = json.loads(line)["result"]
        if isinstance(result, dict) and "oracle" in result:
            statics = [own["loss"] for policy, own in result.items() if policy.startswith("static")]
            assert result["oracle"]["loss"] <= min(statics)

    assert bench(tmp_path, *models).returncode == 0
    assert (tmp_path / "journal.jsonl").read_text() == kept
    assert json.loads((tmp_path / "out.json").read_text())["regimes"] == written["regimes"]


def test_models_need_names_of_their_own(tmp_path: Path) -> None:
    Bundle.untrained().save(tmp_path / "model")
    for names in (("mine", "mine"), ("rule",)):
        with pytest.raises(NoSuchModel, match=names[0]):
            models_of([f"{name}={tmp_path / 'model'}" for name in names], tmp_path)


@pytest.mark.system
def test_a_model_comes_out_of_a_registry_by_its_alias(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where a registry is, unless told otherwise
    (tmp_path / "mlruns").mkdir()
    section = RegistrySection()
    location = RegistryLocation(section.tracking_uri, section.artifact_root, section.model_name)
    Registry(location).ensure_first_version()
    (model,) = models_of(["mine=@champion"], tmp_path / "scratch")
    assert model.name == "mine"
    assert Bundle.load(model.folder).provenance == first_bundle().provenance
    with pytest.raises(NoSuchModel, match="@7"):
        models_of(["mine=@7"], tmp_path / "scratch")


def test_a_model_that_is_not_there_is_refused_with_what_to_do(tmp_path: Path) -> None:
    refused = bench(tmp_path, f"--model={tmp_path / 'absent'}")
    assert refused.returncode == 1
    assert "fix:" in refused.stdout
    assert not (tmp_path / "journal.jsonl").exists()
