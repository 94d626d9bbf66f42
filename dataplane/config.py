"""The plugin's configuration: environment variables ``TRIMTAB_*``, read once at start."""

import os
import re
import socket
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationError
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
        allow_unsupported_vllm: start in a version of vLLM that the plugin is not tested with.
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
    allow_unsupported_vllm: bool = False


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
