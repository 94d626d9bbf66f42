"""Versioned models in MLflow. Only this module and `registry_runs` import it, once it is used.

A version is a run of the experiment ``trimtab`` (parameters, metrics, tags, plots, dataset, and
child runs for the gates it went through) with a model in the pt2 format, which anyone can load
without Trimtab, and the bundle's own files, which is what Trimtab loads. Aliases say what a
version is for: ``@champion`` serves, ``@challenger`` was trained last, ``@previous`` is the
champion to go back to.

All methods block; importing MLflow takes seconds.
"""

import sqlite3
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from models.bundle import Bundle
from models.errors import (
    CorruptBundle,
    ModelError,
    NothingToRollBackTo,
    PromotionRefused,
    RegistryUnavailable,
    UnknownVersion,
)
from models.registry_runs import log_child, log_run, mlflow_module, patient, tag_run
from models.shipped import first_bundle, first_record
from models.sqlite_file import SCHEME, database_of, require_database
from models.succession import (
    CANARY_PREFIX,
    GATES_TAG,
    ROLLED_BACK_PREFIX,
    TRAIL_PREFIX,
    Action,
    Lineup,
    Succession,
    gates_of,
    objection_to,
    predecessor,
    trail_of,
)
from models.verdicts import Verdict, verdicts_to_json
from models.versions import (
    CHALLENGER,
    CHAMPION,
    PREVIOUS,
    SCHEMA_TAG,
    ModelVersion,
    RegistryLocation,
    RunRecord,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion as StoredVersion
    from mlflow.models.model import ModelInfo

__all__ = [
    "CHALLENGER",
    "CHAMPION",
    "EXPERIMENT",
    "PREVIOUS",
    "ModelVersion",
    "Registry",
    "RegistryLocation",
    "RunRecord",
]

EXPERIMENT = "trimtab"

_LOCK_TIMEOUT_S = 120.0
"""Longer than the first migration of an empty store takes on a slow disk."""
_FLUENT = threading.Lock()
"""MLflow's logging functions write to the process's one tracking URI."""
_ABSENT = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")
"""MLflow's answers to a version that does not exist, and to one that is no number."""


class Registry:
    """The versions at one location. Safe to use from several threads and processes at once.

    Every method raises `RegistryUnavailable` when the store does not answer or refuses.
    """

    def __init__(self, location: RegistryLocation) -> None:
        self._name = location.model_name
        self._database = database_of(location.tracking_uri)
        self._uri = location.tracking_uri
        self._artifact_root = location.artifact_root
        self._connected: MlflowClient | None = None
        self._mutex = threading.RLock()
        if self._database is not None:  # MLflow would read relative paths from where it runs
            self._file_lock = FileLock(f"{self._database}.lock", timeout=_LOCK_TIMEOUT_S)
            self._uri = f"{SCHEME}{self._database}"
            root = self._artifact_root or str(self._database.parent / "artifacts")
            self._artifact_root = root if "://" in root else Path(root).absolute().as_uri()

    def ensure_first_version(self) -> None:
        """Give an empty registry the release's model as version 1 and champion.

        Does nothing when there is any version. Processes that start at once on one SQLite
        store get one version between them.
        """
        with self._exclusive():
            if not self.versions():
                bundle = first_bundle()
                self.register(bundle, alias=CHAMPION, run=first_record(bundle))

    def champion_version(self) -> str | None:
        """The version that ``@champion`` points at; None: there is none. One cheap query."""
        return self._aliases().get(CHAMPION)

    def versions(self) -> list[ModelVersion]:
        """All versions, newest first."""
        aliases = self._aliases()
        with self._mapped():
            stored = self._client.search_model_versions(f"name = '{self._name}'")
            found = [self._model_version(version, aliases) for version in stored]
        return sorted(found, key=lambda version: int(version.version), reverse=True)

    def load(self, version: str) -> Bundle:
        """Read a version's bundle.

        Raises:
            UnknownVersion: there is no such version.
            SchemaMismatch: it was made for other features or another network.
            CorruptBundle: its files are missing or changed.
        """
        with self._mapped(absent=UnknownVersion(version, model_name=self._name)):
            self._client.get_model_version(self._name, version)
        with tempfile.TemporaryDirectory(prefix="trimtab-") as scratch:
            gone = CorruptBundle(f"the files of version {version} are gone")
            with self._mapped(absent=gone), _FLUENT:
                # It resolves models:/ in the process's registry, whatever the argument says.
                mlflow_module().set_registry_uri(self._uri)
                folder = mlflow_module().artifacts.download_artifacts(
                    f"models:/{self._name}/{version}/extra_files",
                    dst_path=scratch,
                    tracking_uri=self._uri,
                    registry_uri=self._uri,
                )
            return Bundle.load(Path(folder))

    def register(self, bundle: Bundle, *, alias: str | None, run: RunRecord) -> str:
        """Log a run with the bundle's network and register that; returns the new version."""
        with self._mapped():
            experiment_id = self._experiment_id()
            with _FLUENT:
                mlflow_module().set_tracking_uri(self._uri)
                mlflow_module().set_registry_uri(self._uri)
                run_id, model = log_run(bundle, run, experiment_id=experiment_id)
            version = self._create_version(bundle, model, run, run_id=run_id)
            if alias is not None:
                self._set_alias(alias, version)
            return version

    def attach(self, version: str, child: RunRecord) -> None:
        """Add a child run to the one that a version came out of, such as a canary's verdict.

        Raises:
            UnknownVersion: there is no such version.
        """
        with self._mapped(absent=UnknownVersion(version, model_name=self._name)):
            parent = self._client.get_run(self._run_id(version))
            log_child(self._client, child, parent=parent.info)

    def promote(self, version: str, *, actor: str, reason: str, force: bool = False) -> None:
        """Make a version the champion, and the champion ``@previous``.

        The audit trail is written first, so that it lacks no change: the tags of the version and
        of its run tell of its last promotion, tags of the registered model of all of them.

        Args:
            version: any; without recorded verdicts there is nothing against it.
            actor: who.
            reason: why.
            force: also against an objection. The trail tells.

        Raises:
            ValueError: actor or reason is empty.
            UnknownVersion: there is no such version.
            SchemaMismatch: it could not serve in this process.
            CorruptBundle: it could not serve at all.
            PromotionRefused: a gate failed, or it was rolled back, and ``force`` is not set.
        """
        with self._exclusive():
            self.load(version)
            tags = self._tags(version)
            objection = objection_to(tags)
            if objection is not None and not force:
                raise PromotionRefused(version, objection)
            entry = Succession(
                version,
                self.champion_version(),
                actor,
                reason,
                _now(),
                gates=gates_of(tags),
                forced=objection is not None,
            )
            previous = entry.replaced
            if previous == version:
                previous = self._aliases().get(PREVIOUS)
            self._succeed(entry, previous)

    def rollback(self, *, actor: str, reason: str) -> str:
        """Make ``@previous`` the champion again; returns its version.

        ``@previous`` then names whom that version had replaced, so that a second rollback
        leads one step further back. The version that was champion is refused from then on,
        unless forced.

        Raises:
            ValueError: actor or reason is empty.
            NothingToRollBackTo: no version has the alias.
            SchemaMismatch: it could not serve in this process.
            CorruptBundle: it could not serve at all.
        """
        with self._exclusive():
            aliases = self._aliases()
            target = aliases.get(PREVIOUS)
            if target is None:
                raise NothingToRollBackTo(self._name)
            self.load(target)
            entry = Succession(
                target, aliases.get(CHAMPION), actor, reason, _now(), Action.ROLL_BACK,
                gates_of(self._tags(target)),
            )  # fmt: skip
            self._succeed(entry, predecessor(self.history(), target))
            return target

    def record_verdicts(self, version: str, verdicts: Iterable[Verdict]) -> None:
        """Keep what the gates said of a version, with the version.

        Raises:
            UnknownVersion: there is no such version.
        """
        self._tag(version, {GATES_TAG: verdicts_to_json(verdicts)})

    def record_trial(self, version: str, *, outcome: str, reason: str) -> None:
        """Keep how a version's trial on some of the engines ended, with the version.

        Raises:
            UnknownVersion: there is no such version.
        """
        self._tag(version, {f"{CANARY_PREFIX}outcome": outcome, f"{CANARY_PREFIX}reason": reason})

    def lineup(self) -> Lineup:
        """Which version has which alias, and who made the champion that."""
        aliases, trail = self._aliases(), self.history()
        challenger = aliases.get(CHALLENGER)
        tags = {} if challenger is None else self._tags(challenger)
        change = trail[-1] if trail else None
        return Lineup(aliases.get(CHAMPION), challenger, aliases.get(PREVIOUS), tags, change)

    def history(self) -> tuple[Succession, ...]:
        """Every change of the champion, oldest first."""
        with self._mapped():
            named = self._client.search_registered_models(f"name = '{self._name}'")
        return trail_of({key: str(value) for model in named for key, value in model.tags.items()})

    @property
    def _client(self) -> "MlflowClient":
        """Connects when first used. One process at a time creates and migrates SQLite."""
        if self._connected is None:
            with self._exclusive(), self._mapped():
                self._connected = self._connect()
        return self._connected

    def _connect(self) -> "MlflowClient":
        if self._database is not None:
            require_database(self._database)
        client: MlflowClient = mlflow_module().MlflowClient(self._uri, self._uri)
        client.search_registered_models(max_results=1)  # migrates the registry's part
        return client

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Hold an SQLite store against other processes; a server keeps its own order.

        Threads take the mutex first, then the file, then `_FLUENT`: no two can wait for each
        other.
        """
        with self._mutex, ExitStack() as held:
            if self._database is not None:
                with self._mapped():
                    self._database.parent.mkdir(parents=True, exist_ok=True)
                    held.enter_context(self._file_lock)
            yield

    @contextmanager
    def _mapped(self, *, absent: ModelError | None = None) -> Iterator[None]:
        """Turn what MLflow and what lies below it raise into this package's errors.

        Args:
            absent: what to raise when the store answers that it has no such thing.
        """
        exceptions = mlflow_module().exceptions
        from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415 - comes with MLflow

        try:
            yield
        except exceptions.MlflowException as error:
            if absent is not None and error.error_code in _ABSENT:
                raise absent from error
            raise self._unavailable(error) from error
        except (SQLAlchemyError, sqlite3.Error, OSError) as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> RegistryUnavailable:
        cause = " ".join(str(error).split())
        return RegistryUnavailable(f"model registry {self._uri}: {cause[:300]}")

    def _aliases(self) -> dict[str, str]:
        """Version by alias; empty while nothing is registered."""
        with self._mapped():
            named = self._client.search_registered_models(f"name = '{self._name}'")
        return {alias: str(version) for model in named for alias, version in model.aliases.items()}

    def _model_version(self, stored: "StoredVersion", aliases: Mapping[str, str]) -> ModelVersion:
        version = str(stored.version)
        metrics = self._client.get_run(stored.run_id).data.metrics if stored.run_id else {}
        return ModelVersion(
            version=version,
            aliases=tuple(sorted(name for name, target in aliases.items() if target == version)),
            created_unix_s=stored.creation_timestamp / 1000,
            run_id=stored.run_id,
            metrics=metrics,
            schema_hash=stored.tags.get(SCHEMA_TAG),
            tags=stored.tags,
        )

    def _experiment_id(self) -> str:
        with self._exclusive():
            experiment = self._client.get_experiment_by_name(EXPERIMENT)
            if experiment is not None:
                return experiment.experiment_id
            return self._client.create_experiment(EXPERIMENT, artifact_location=self._artifact_root)

    @patient
    def _set_alias(self, alias: str, version: str) -> None:
        self._client.set_registered_model_alias(self._name, alias, version)

    def _run_id(self, version: str) -> str:
        return str(self._client.get_model_version(self._name, version).run_id)

    @patient
    def _create_version(
        self, bundle: Bundle, model: "ModelInfo", run: RunRecord, *, run_id: str
    ) -> str:
        with self._exclusive():
            if not self._client.search_registered_models(f"name = '{self._name}'"):
                self._client.create_registered_model(self._name)
        created = self._client.create_model_version(
            self._name,
            source=model.model_uri,
            run_id=run_id,
            tags={SCHEMA_TAG: bundle.schema_hash, **run.tags},
            description=run.description or None,
            model_id=model.model_id,
        )
        return str(created.version)

    def _tags(self, version: str) -> dict[str, str]:
        with self._mapped(absent=UnknownVersion(version, model_name=self._name)):
            return dict(self._client.get_model_version(self._name, version).tags)

    def _tag(self, version: str, tags: Mapping[str, str]) -> None:
        with self._mapped(absent=UnknownVersion(version, model_name=self._name)):
            for tag, value in tags.items():
                patient(self._client.set_model_version_tag)(self._name, version, tag, value)

    def _succeed(self, entry: Succession, previous: str | None) -> None:
        """Write the trail, then move the aliases."""
        with self._mapped():
            client, name = self._client, self._name
            key = f"{TRAIL_PREFIX}{datetime.fromisoformat(entry.at):%Y%m%dT%H%M%S.%fZ}"
            patient(client.set_registered_model_tag)(name, key, entry.json)
            prefix, version = TRAIL_PREFIX, entry.version
            if entry.action is Action.ROLL_BACK and entry.replaced is not None:
                prefix, version = ROLLED_BACK_PREFIX, entry.replaced
            tags = {prefix + field: getattr(entry, field) for field in ("actor", "reason", "at")}
            self._tag(version, tags)
            tag_run(client, self._run_id(version), tags)
            if previous is None:
                patient(client.delete_registered_model_alias)(name, PREVIOUS)
            else:
                self._set_alias(PREVIOUS, previous)
            self._set_alias(CHAMPION, entry.version)


def _now() -> str:
    """Of the audit trail: it is stamped at the edge, which is here."""
    return datetime.now(tz=UTC).isoformat(timespec="microseconds")  # noqa: TID251 - the edge
