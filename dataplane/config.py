"""The plugin's configuration: environment variables ``TRIMTAB_*``, read once at start."""

import os
import re
import socket
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from dataplane.errors import ConfigError

ENV_PREFIX = "TRIMTAB_"
_HOST_PORT = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_.-]+):([0-9]{1,5})")


def _host_port(address: str) -> str:
    match = _HOST_PORT.fullmatch(address)
    if match is None or not 0 < int(match[2]) < 2**16:
        raise ValueError("expected host:port, for example 127.0.0.1:9440")
    return address


def _this_process() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


class DataplaneConfig(BaseSettings):
    """What an operator may set on an engine.

    Attributes:
        control_plane: where the control plane listens, ``host:port``.
        engine_id: names this engine to the control plane; stable over reconnects.
        max_class_names: distinct class names that requests may bring along beyond those
            of the snapshot; further ones count as ``other``.
        report_interval_s: between two reports to the control plane.
        flush_interval_s: between two writes of the metrics.
        prometheus_multiproc_dir: vLLM's variable, without the prefix; None: /metrics of the
            server does not show the plugin's metrics.
        state_dir: where engines leave notices for the API servers in front of them, one
            directory per server; None: in ``prometheus_multiproc_dir``.
        max_body_bytes: a request whose class or tenant comes in a header may have a body
            of this size.
        held_back: requests of a class that the breaker admits no more ``wait`` in the
            queue, or the middleware is to ``refuse`` them with 503.
    """

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True)

    control_plane: Annotated[str, AfterValidator(_host_port)] = "127.0.0.1:9440"
    engine_id: str = Field(default_factory=_this_process, pattern=r"^[!-~]{1,128}$")
    max_class_names: int = Field(default=32, ge=0, le=1000)
    report_interval_s: float = Field(default=1.0, gt=0, le=60)
    flush_interval_s: float = Field(default=0.25, gt=0, le=60)
    prometheus_multiproc_dir: str | None = Field(
        default=None, validation_alias="PROMETHEUS_MULTIPROC_DIR"
    )
    state_dir: str | None = None
    max_body_bytes: int = Field(default=32 * 2**20, ge=1)
    held_back: Literal["wait", "refuse"] = "wait"

    @field_validator("held_back")
    @classmethod
    def _needs_a_directory(cls, held_back: str, info: ValidationInfo) -> str:
        directories = ("state_dir", "prometheus_multiproc_dir")
        if held_back == "refuse" and not any(info.data.get(name) for name in directories):
            raise ValueError("needs TRIMTAB_STATE_DIR or PROMETHEUS_MULTIPROC_DIR to be set")
        return held_back

    @property
    def notices_dir(self) -> Path | None:
        """Where engines say which classes are to be refused; None: requests wait."""
        directory = self.state_dir or self.prometheus_multiproc_dir
        return Path(directory) if directory and self.held_back == "refuse" else None


def load_config() -> DataplaneConfig:
    """Read the environment.

    Raises:
        ConfigError: a value cannot be used; the text names the variable and the fix.
    """
    try:
        return DataplaneConfig()
    except ValidationError as error:
        raise ConfigError("; ".join(_complaints(error))) from error


def _complaints(error: ValidationError) -> list[str]:
    return [
        f"{ENV_PREFIX}{str(detail['loc'][0]).upper()}={detail['input']!r}: {detail['msg']}"
        for detail in error.errors()
    ]
