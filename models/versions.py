"""What is said about a registered version, and where the versions are. Imports no MLflow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

CHAMPION = "champion"
"""Alias of the version that serves."""
CHALLENGER = "challenger"
"""Alias of the version that was trained last."""
PREVIOUS = "previous"
"""Alias of the champion to go back to."""


SCHEMA_TAG = "trimtab.schema_hash"
"""Tag of a version, and of its run."""


@dataclass(frozen=True, slots=True)
class RegistryLocation:
    """Where the versions are.

    Attributes:
        tracking_uri: MLflow's store, e.g. ``sqlite:///mlruns/mlflow.db`` or a server's URL.
        artifact_root: folder or URI for the files of new runs. None: ``artifacts`` beside
            an SQLite store; otherwise the server's choice.
        model_name: the registered model.
    """

    tracking_uri: str
    artifact_root: str | None = None
    model_name: str = "trimtab-weights"


@dataclass(frozen=True, slots=True)
class DatasetRecord:
    """What a version was fitted to, without the data itself.

    Attributes:
        source: where it can be had, such as the URL of a Prometheus.
        digest: tells two datasets apart; up to 36 characters.
        tags: anything else.
    """

    name: str
    source: str
    digest: str
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What is to be remembered of how a version came about, or of a part of that.

    Attributes:
        name: of the run.
        params: what was chosen.
        metrics: what came out.
        epochs: the metrics of each training epoch, in order.
        tags: anything else, searchable; the version carries them, too.
        description: of the version, in Markdown.
        files: artifacts, by their path.
        dataset: what it was fitted to; None: nothing.
        children: the parts that are runs of their own, such as gates.
        passed: False shows as a failed run.
    """

    name: str
    params: Mapping[str, str | int | float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    epochs: Sequence[Mapping[str, float]] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    description: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)
    dataset: DatasetRecord | None = None
    children: Sequence["RunRecord"] = ()
    passed: bool = True


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """One registered version.

    Attributes:
        aliases: without the ``@``, sorted.
        run_id: None: not registered out of a run.
        schema_hash: None: not registered by Trimtab.
    """

    version: str
    aliases: tuple[str, ...]
    created_unix_s: float
    run_id: str | None
    metrics: Mapping[str, float]
    schema_hash: str | None
    tags: Mapping[str, str]
