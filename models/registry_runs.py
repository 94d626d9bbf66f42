"""How a retraining becomes runs in MLflow: one, and a child for each of its parts.

The number of calls does not grow with the epochs: metrics go a thousand at a time.
"""

import json
import logging
import os
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray
from tenacity import (
    retry,
    retry_if_exception,
    stop_after_delay,
    wait_random_exponential,
)

from models.bundle import MANIFEST_FILE, WEIGHTS_FILE, Bundle
from models.classes import Slo, TaskClass
from models.features import FEATURE_NAMES, encode
from models.versions import SCHEMA_TAG, DatasetRecord, RunRecord
from models.window import STEP_S, STEPS, Signal, Window

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, RunInfo
    from mlflow.models.model import ModelInfo

T = TypeVar("T")

_METRICS_PER_CALL = 1000
_PARAMS_PER_CALL = 100
"""MLflow's own limits."""


def _is_locked(error: BaseException) -> bool:
    """MLflow wraps what SQLite says; the transaction was rolled back, so nothing is half done."""
    return "database is locked" in str(error)


patient = retry(
    retry=retry_if_exception(_is_locked),
    stop=stop_after_delay(60),
    wait=wait_random_exponential(multiplier=0.05, max=2),
    reraise=True,
)
"""Try again while another process writes to the same SQLite store."""


@cache
def mlflow_module() -> ModuleType:
    """MLflow, imported when first needed and told to be quiet, local and quick to fail."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    import mlflow  # noqa: PLC0415 - takes seconds

    logging.getLogger("mlflow").setLevel(logging.WARNING)
    return mlflow


def log_run(bundle: Bundle, run: RunRecord, *, experiment_id: str) -> tuple[str, "ModelInfo"]:
    """Log a finished run to the current tracking URI; returns its id and the model."""
    mlflow = mlflow_module()
    client = mlflow.MlflowClient()
    start = patient(mlflow.start_run)
    with start(experiment_id=experiment_id, run_name=run.name) as active:
        params = {**_origin(bundle), **run.params}
        tags = {SCHEMA_TAG: bundle.schema_hash, **run.tags}
        if run.description:
            tags["mlflow.note.content"] = run.description
        _log_numbers(client, active.info, run, params=params, tags=tags)
        for child in run.children:
            log_child(client, child, parent=active.info)
        _log_files(client, active.info.run_id, run.files)
        if run.dataset is not None:
            _log_dataset(client, active.info.run_id, run.dataset)
        return active.info.run_id, _log_model(bundle)


def log_child(client: "MlflowClient", run: RunRecord, *, parent: "RunInfo") -> None:
    """Log a run under another; its files, dataset and children are not its own."""
    tags = {"mlflow.parentRunId": parent.run_id}
    child = patient(client.create_run)(parent.experiment_id, tags=tags, run_name=run.name)
    _log_numbers(client, child.info, run, params=run.params, tags=run.tags)
    patient(client.set_terminated)(child.info.run_id, "FINISHED" if run.passed else "FAILED")


@patient
def tag_run(client: "MlflowClient", run_id: str, tags: Mapping[str, str]) -> None:
    """Add tags to a run that has ended."""
    from mlflow.entities import RunTag  # noqa: PLC0415 - takes seconds

    client.log_batch(run_id, tags=[RunTag(name, value) for name, value in tags.items()])


def _log_numbers(
    client: "MlflowClient",
    info: "RunInfo",
    run: RunRecord,
    *,
    params: Mapping[str, str | int | float],
    tags: Mapping[str, str],
) -> None:
    from mlflow.entities import Param  # noqa: PLC0415 - takes seconds

    log_batch = patient(client.log_batch)
    stored = [Param(name, str(value)) for name, value in params.items()]
    for some_params in _batched(stored, _PARAMS_PER_CALL):
        log_batch(info.run_id, params=some_params)
    for some_metrics in _batched(_metrics(run, at_ms=info.start_time), _METRICS_PER_CALL):
        log_batch(info.run_id, metrics=some_metrics)
    if tags:
        tag_run(client, info.run_id, tags)


def _batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    remaining = iter(items)
    while some := list(islice(remaining, size)):
        yield some


def _metrics(run: RunRecord, *, at_ms: int) -> Iterator["Metric"]:
    """Those of the epochs, then the run's own at a step after them: MLflow shows the last."""
    from mlflow.entities import Metric  # noqa: PLC0415 - takes seconds

    steps: Sequence[Mapping[str, float]] = (*run.epochs, run.metrics)
    for step, metrics in enumerate(steps):
        for name, value in metrics.items():
            yield Metric(name, float(value), at_ms, step)


def _log_files(client: "MlflowClient", run_id: str, files: Mapping[str, bytes]) -> None:
    if not files:
        return
    with tempfile.TemporaryDirectory(prefix="trimtab-") as folder:
        for name, content in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        client.log_artifacts(run_id, folder)


def _log_dataset(client: "MlflowClient", run_id: str, dataset: DatasetRecord) -> None:
    from mlflow.entities import Dataset, DatasetInput, InputTag  # noqa: PLC0415 - takes seconds

    described = Dataset(
        name=dataset.name,
        digest=dataset.digest,
        source_type="http",
        source=json.dumps({"url": dataset.source}),
    )
    tags = {"mlflow.data.context": "training", **dataset.tags}
    told = DatasetInput(described, [InputTag(name, value) for name, value in tags.items()])
    patient(client.log_inputs)(run_id, datasets=[told])


def _origin(bundle: Bundle) -> dict[str, str | int | float]:
    """The bundle's provenance as parameters, without what is not known."""
    known = {name: value for name, value in asdict(bundle.provenance).items() if value is not None}
    return {f"bundle.{name}": value for name, value in known.items()}


@patient
def _log_model(bundle: Bundle) -> "ModelInfo":
    """Log the network and the bundle's files to the active run."""
    import mlflow.pytorch  # noqa: PLC0415 - takes seconds
    from mlflow.models import ModelSignature  # noqa: PLC0415 - the same
    from mlflow.types import Schema, TensorSpec  # noqa: PLC0415 - the same

    number = np.dtype(np.float32)
    signature = ModelSignature(
        inputs=Schema([TensorSpec(number, (-1, STEPS, len(FEATURE_NAMES)))]),
        outputs=Schema([TensorSpec(number, (-1, 3))]),
    )
    with tempfile.TemporaryDirectory(prefix="trimtab-") as folder, warnings.catch_warnings():
        # torch warns of nn.LSTM's own cache of its weights; the exported program is right.
        warnings.filterwarnings("ignore", "The tensor attributes .* were assigned during export")
        bundle.save(Path(folder))
        info: ModelInfo = mlflow.pytorch.log_model(
            bundle.network,
            name="network",
            signature=signature,
            input_example=_example_input(),
            serialization_format="pt2",
            extra_files=[str(Path(folder) / name) for name in (MANIFEST_FILE, WEIGHTS_FILE)],
            pip_requirements=["numpy", "torch"],  # naming them spares MLflow a search
        )
        return info


def _example_input() -> NDArray[np.float32]:
    """Two idle classes; torch.export takes an axis of one for a constant."""
    classes = [TaskClass("vip", Slo(ttft_s=1.0), value=4.0), TaskClass("batch", Slo(ttft_s=30.0))]
    window = Window(
        end_unix_s=0.0,
        step_s=STEP_S,
        task_classes=tuple(task_class.name for task_class in classes),
        signals={signal: np.zeros((len(classes), STEPS)) for signal in Signal},
    )
    return encode(window, classes)
