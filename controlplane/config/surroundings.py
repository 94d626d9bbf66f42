"""What the control plane stands among: Prometheus, its store, the registry, its peers."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from controlplane.config.values import Seconds, Section


class PrometheusSection(Section):
    """Where the metrics of the engines come from."""

    url: Annotated[str, Field(pattern=r"^https?://\S+$")] = Field(
        "http://127.0.0.1:9090", description="of the Prometheus that scrapes the engines"
    )
    scrape_interval_s: Seconds = Field(5.0, description="how often it scrapes them")
    timeout_s: Seconds = Field(2.0, description="longest wait for one answer")
    staleness_s: Seconds = Field(
        20.0, description="a window whose newest sample is older counts as missed"
    )

    @model_validator(mode="after")
    def _scrape_before_stale(self) -> Self:
        if self.scrape_interval_s > self.staleness_s:
            raise ValueError(
                f"scrape_interval_s ({self.scrape_interval_s:g}) is longer than staleness_s "
                f"({self.staleness_s:g}): every window would count as missed"
            )
        return self


class StoreSection(Section):
    """Where published snapshots and the reasons for them are kept."""

    path: Path = Field(Path("trimtab.db"), description="SQLite file; created when missing")
    retention_snapshots: int = Field(
        20_000,
        ge=100,
        le=10_000_000,
        description="how many snapshots, decisions and events are kept",
    )


class RegistrySection(Section):
    """The MLflow model registry."""

    tracking_uri: str = Field("sqlite:///mlruns/mlflow.db", description="of the MLflow store")
    artifact_root: str | None = Field(
        "mlruns/artifacts", description="where new experiments keep their files"
    )
    model_name: str = Field("trimtab-weights", description="the registered model to serve")
    poll_s: Seconds = Field(5.0, description="how often the champion alias is looked up")


class TrainingSection(Section):
    """Retraining."""

    state: Path = Field(
        Path("trimtab-training"),
        description="folder: the schedule, past runs, and what the next one needs of the last",
    )


class LimitsSection(Section):
    """What one peer, or all of them, may ask of the gRPC server."""

    max_streams: int = Field(1000, ge=1, description="engine and watch streams at a time")
    max_message_bytes: int = Field(
        262_144, ge=1024, lt=2**31, description="largest message that is accepted from a peer"
    )
    answer_timeout_s: Seconds = Field(
        10.0, description="an engine that has not answered a push by then gets the newest one"
    )
