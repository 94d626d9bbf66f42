"""The registry on real SQLite stores."""

import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from window_examples import BATCH, VIP, window

from models.bundle import MANIFEST_FILE, WEIGHTS_FILE, Bundle
from models.errors import CorruptBundle, RegistryUnavailable, SchemaMismatch, UnknownVersion
from models.features import encode, schema_hash
from models.registry import CHALLENGER, EXPERIMENT, Registry, RegistryLocation, RunRecord
from models.shipped import first_bundle

pytestmark = pytest.mark.system

CLASSES = (VIP, BATCH)
TRAFFIC = window(CLASSES)


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty store: its migration takes seconds, a copy of the file does not."""
    database = tmp_path_factory.mktemp("migrated") / "mlflow.db"
    assert Registry(RegistryLocation(f"sqlite:///{database}")).versions() == []
    return database


@pytest.fixture
def location(migrated: Path, tmp_path: Path) -> RegistryLocation:
    shutil.copy(migrated, tmp_path / "mlflow.db")
    return RegistryLocation(f"sqlite:///{tmp_path}/mlflow.db")


@pytest.fixture
def registry(location: RegistryLocation) -> Registry:
    first = Registry(location)
    first.ensure_first_version()
    return first


def register_another(registry: Registry, seed: int = 1) -> str:
    return registry.register(Bundle.untrained(seed), alias=CHALLENGER, run=RunRecord("another"))


def files_of_version(tmp_path: Path, version: str) -> Path:
    """The bundle's folder: models are kept in the order of their registration."""
    folders = sorted(
        (tmp_path / "artifacts").glob("models/*/artifacts/extra_files"),
        key=lambda folder: folder.stat().st_mtime_ns,
    )
    return folders[int(version) - 1]


def test_empty_registry_gets_the_releases_model_as_version_one_and_champion(
    registry: Registry,
) -> None:
    assert registry.champion_version() == "1"
    stored, shipped = registry.load("1"), first_bundle()
    assert (stored.provenance, stored.ranges) == (shipped.provenance, shipped.ranges)
    weights = stored.predict(TRAFFIC, CLASSES).weights
    assert (weights == shipped.predict(TRAFFIC, CLASSES).weights).all()


def test_registry_with_a_version_is_left_alone(registry: Registry) -> None:
    register_another(registry)
    registry.ensure_first_version()
    assert [version.version for version in registry.versions()] == ["2", "1"]


def test_empty_registry_names_no_champion(location: RegistryLocation) -> None:
    assert Registry(location).champion_version() is None


def test_processes_that_start_at_once_on_an_empty_store_make_one_version(tmp_path: Path) -> None:
    script = (
        "import sys; from models.registry import Registry, RegistryLocation;"
        "Registry(RegistryLocation(sys.argv[1])).ensure_first_version()"
    )
    uri = f"sqlite:///{tmp_path}/new/mlflow.db"
    started = [
        subprocess.Popen([sys.executable, "-c", script, uri], stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    stderrs = [process.communicate()[1] for process in started]
    assert [process.returncode for process in started] == [0, 0], stderrs
    assert stderrs == ["", ""], "a first start is quiet"
    assert [v.version for v in Registry(RegistryLocation(uri)).versions()] == ["1"]


def test_threads_with_registries_of_their_own_do_not_wait_for_each_other_for_ever(
    location: RegistryLocation,
) -> None:
    def start(seed: int) -> str:
        mine = Registry(location)
        mine.ensure_first_version()
        return register_another(mine, seed)

    with ThreadPoolExecutor(3) as threads:
        assert sorted(threads.map(start, range(3))) == ["2", "3", "4"]


def test_version_tells_how_it_came_about(registry: Registry) -> None:
    version = registry.register(
        Bundle.untrained(5),
        alias=CHALLENGER,
        run=RunRecord(
            "a-fit",
            params={"fit.epochs": 2},
            metrics={"validation_loss": 0.25},
            epochs=[
                {"train_loss": 0.9, "validation_loss": 0.25},
                {"train_loss": 0.4, "validation_loss": 0.7},
            ],
            tags={"trimtab.classes": "vip, batch"},
        ),
    )
    newest = registry.versions()[0]
    assert (newest.version, newest.aliases) == (version, ("challenger",))
    # The loss of what is registered, not of the last epoch.
    assert newest.metrics == {"validation_loss": 0.25, "train_loss": 0.4}
    assert newest.schema_hash == schema_hash()
    assert registry.champion_version() == "1", "a challenger does not serve"


def test_mlflow_shows_signature_example_parameters_and_epochs(
    registry: Registry, location: RegistryLocation
) -> None:
    import mlflow  # noqa: PLC0415 - takes seconds

    record = RunRecord("a-fit", params={"fit.epochs": 2}, epochs=[{"loss": 0.9}, {"loss": 0.4}])
    version = registry.register(Bundle.untrained(5), alias=None, run=record)
    uri = location.tracking_uri
    client = mlflow.MlflowClient(uri, uri)
    stored = client.get_model_version(location.model_name, version)
    run = client.get_run(stored.run_id)
    assert run.data.params == {"bundle.origin": "untrained", "bundle.seed": "5", "fit.epochs": "2"}
    assert run.info.run_name == "a-fit"
    assert run.info.status == "FINISHED"
    assert client.get_experiment(run.info.experiment_id).name == EXPERIMENT
    losses = client.get_metric_history(stored.run_id, "loss")
    assert [(loss.step, loss.value) for loss in losses] == [(0, 0.9), (1, 0.4)]
    mlflow.set_tracking_uri(uri)
    info = mlflow.models.get_model_info(f"models:/{location.model_name}/{version}")
    (inputs,) = info.signature.inputs.inputs
    assert inputs.shape == (-1, *encode(TRAFFIC, CLASSES).shape[1:])
    assert info.saved_input_example_info is not None


@pytest.mark.parametrize("classes", [CLASSES, (VIP,), (VIP, BATCH, *CLASSES)])
def test_the_portable_model_gives_the_bundles_weights(
    registry: Registry, location: RegistryLocation, classes: tuple[object, ...]
) -> None:
    import mlflow.pytorch  # noqa: PLC0415 - takes seconds

    bundle = Bundle.untrained(5)
    with torch.no_grad():
        bundle.network.emit.weight.normal_()
    version = registry.register(bundle, alias=None, run=RunRecord("moved"))
    mlflow.set_tracking_uri(location.tracking_uri)
    portable = mlflow.pytorch.load_model(f"models:/{location.model_name}/{version}")
    features = torch.from_numpy(encode(TRAFFIC, CLASSES)).repeat(2, 1, 1)[: len(classes)]
    with torch.inference_mode():
        np.testing.assert_allclose(
            portable(features), registry.load(version).network(features), rtol=1e-5, atol=1e-6
        )


def test_promotion_moves_the_aliases_and_is_seen_by_others(
    registry: Registry, location: RegistryLocation
) -> None:
    version = register_another(registry)
    watching = Registry(location)
    assert watching.champion_version() == "1"
    registry.promote(version, actor="ada", reason="lower loss")
    assert watching.champion_version() == version
    aliases = {entry.version: entry.aliases for entry in watching.versions()}
    assert aliases == {"1": ("previous",), "2": ("challenger", "champion")}


def test_every_promotion_stays_in_the_audit_trail(
    registry: Registry, location: RegistryLocation
) -> None:
    import mlflow  # noqa: PLC0415 - takes seconds

    version = register_another(registry)
    registry.promote(version, actor="ada", reason="lower loss")
    registry.promote("1", actor="bob", reason="roll back")
    client = mlflow.MlflowClient(location.tracking_uri, location.tracking_uri)
    tags = client.get_registered_model(location.model_name).tags
    trail = [json.loads(tags[key]) for key in sorted(tags) if key.startswith("promotion.")]
    assert [(e["version"], e["replaced"], e["actor"], e["reason"]) for e in trail] == [
        ("2", "1", "ada", "lower loss"),
        ("1", "2", "bob", "roll back"),
    ]
    assert registry.champion_version() == "1"
    newest = registry.versions()[0]
    assert newest.aliases == ("challenger", "previous")
    assert newest.tags["promotion.actor"] == "ada"


@pytest.mark.parametrize("version", ["9", "abc", ""])
def test_unknown_version_is_neither_loaded_nor_promoted(registry: Registry, version: str) -> None:
    with pytest.raises(UnknownVersion, match="has no version"):
        registry.load(version)
    with pytest.raises(UnknownVersion):
        registry.promote(version, actor="ada", reason="typo")
    assert registry.champion_version() == "1"


@pytest.mark.parametrize(("actor", "reason"), [("", "why"), ("ada", " ")])
def test_promotion_without_actor_or_reason_is_refused(
    registry: Registry, actor: str, reason: str
) -> None:
    with pytest.raises(ValueError, match="needs an actor and a reason"):
        registry.promote(register_another(registry), actor=actor, reason=reason)
    assert registry.champion_version() == "1"


def test_version_of_another_schema_is_not_promoted(registry: Registry, tmp_path: Path) -> None:
    version = register_another(registry)
    manifest = files_of_version(tmp_path, version) / MANIFEST_FILE
    manifest.write_text(manifest.read_text().replace(schema_hash(), "feed"))
    with pytest.raises(SchemaMismatch, match="feed"):
        registry.promote(version, actor="ada", reason="lower loss")
    assert registry.champion_version() == "1"


def test_version_with_a_truncated_file_is_not_promoted(registry: Registry, tmp_path: Path) -> None:
    version = register_another(registry)
    weights = files_of_version(tmp_path, version) / WEIGHTS_FILE
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(CorruptBundle, match="SHA-256"):
        registry.promote(version, actor="ada", reason="lower loss")
    assert registry.champion_version() == "1"


def test_version_whose_files_are_gone_is_not_promoted(registry: Registry, tmp_path: Path) -> None:
    version = register_another(registry)
    shutil.rmtree(files_of_version(tmp_path, version))
    with pytest.raises(CorruptBundle, match="gone"):
        registry.promote(version, actor="ada", reason="lower loss")
    assert registry.champion_version() == "1"


def test_each_registry_of_a_process_loads_from_its_own_store(
    registry: Registry, migrated: Path, tmp_path: Path
) -> None:
    version = register_another(registry, seed=7)
    shutil.copy(migrated, tmp_path / "other.db")
    other = Registry(RegistryLocation(f"sqlite:///{tmp_path}/other.db"))
    other.ensure_first_version()
    assert register_another(other, seed=8) == version
    assert registry.load(version).provenance.seed == 7
    assert other.load(version).provenance.seed == 8


def test_relative_store_lies_where_the_process_started(
    migrated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mlruns").mkdir()
    shutil.copy(migrated, tmp_path / "mlruns" / "mlflow.db")
    monkeypatch.chdir(tmp_path)
    registry = Registry(RegistryLocation("sqlite:///mlruns/mlflow.db", "mlruns/files"))
    monkeypatch.chdir("/")
    registry.ensure_first_version()
    assert registry.load("1").provenance == first_bundle().provenance
    assert (tmp_path / "mlruns" / "files" / "models").is_dir()


def test_server_that_does_not_answer_is_unavailable(unused_tcp_port: int) -> None:
    registry = Registry(RegistryLocation(f"http://127.0.0.1:{unused_tcp_port}"))
    with pytest.raises(RegistryUnavailable, match=str(unused_tcp_port)):
        registry.champion_version()


def test_file_that_is_no_database_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_text("not a database, but long enough to look like one" * 20)
    with pytest.raises(RegistryUnavailable, match="not a database"):
        Registry(RegistryLocation(f"sqlite:///{tmp_path}/mlflow.db")).versions()


def test_folder_that_cannot_be_made_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RegistryUnavailable, match="file"):
        Registry(RegistryLocation(f"sqlite:///{tmp_path}/file/mlflow.db")).ensure_first_version()
