"""The plugin's configuration: environment variables ``TRIMTAB_*``, read once at start.

Sections are reached with a double underscore: ``TRIMTAB_BREAKER__COOL_DOWN_S``.
"""

import os
import re
import socket
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from dataplane.errors import ConfigError

ENV_PREFIX = "TRIMTAB_"
SECTION_DELIMITER = "__"
_HOST_PORT = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_.-]+):([0-9]{1,5})")


def _host_port(address: str) -> str:
    match = _HOST_PORT.fullmatch(address)
    if match is None or not 0 < int(match[2]) < 2**16:
        raise ValueError("expected host:port, for example 127.0.0.1:9440")
    return address


def _this_process() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


Factor = Annotated[float, Field(ge=1, le=100)]
Share = Annotated[float, Field(gt=0, le=1)]
Duration = Annotated[float, Field(gt=0, le=3600)]


class Section(BaseModel):
    """Part of the configuration. Unknown keys are errors: they would do nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PreemptionSettings(Section):
    """When a waiting request may take the place of a running one.

    Attributes:
        weight_ratio: the weight of the one is at least so many times that of the other.
        patience_ratio: share of its slack that a request first waits for a place to come
            free by itself.
        min_run_s: least time on the engine between two preemptions of a request.
        max_preemptions: of one request.
        recompute_share: of what the engine could prefill, spent on recomputing at most.
        recompute_tokens_per_min: an absolute limit in place of the share.
    """

    enabled: bool = True
    weight_ratio: float = Field(default=1.5, gt=1, le=1000)
    patience_ratio: float = Field(default=0.5, ge=0, le=1)
    min_run_s: float = Field(default=1.0, ge=0, le=3600)
    max_preemptions: int = Field(default=2, ge=1, le=100)
    recompute_share: Share = 0.02
    recompute_tokens_per_min: float | None = Field(default=None, gt=0, le=1e9)


class ReserveSettings(Section):
    """How many KV blocks stay free for better tiers.

    Attributes:
        factor_p0: of the blocks that the tier holds on average, how many it shall find.
        factor_p1: likewise.
        factor_p2: likewise.
        half_life_s: after which an observation counts half in that average.
        max_share: of all blocks, kept free at most.
        max_hold_s: longest time that a tier is held back without any admission.
    """

    enabled: bool = True
    factor_p0: Factor = 1.8
    factor_p1: Factor = 1.3
    factor_p2: Factor = 1.1
    half_life_s: Duration = 30.0
    max_share: Share = 0.5
    max_hold_s: Duration = 30.0


class BreakerSettings(Section):
    """When the engine sheds load by itself.

    Attributes:
        max_incidents_per_s: allocation failures and preemptions; more is trouble, if steps
            are slow as well.
        slow_step_ratio: a step is slow above so many times the usual step time ...
        slow_step_floor_s: ... and above this.
        open_after_s: trouble that lasts so long opens the breaker.
        cool_down_s: how long it stays open the first time; doubles with each relapse.
        max_cool_down_s: the longest.
        quiet_s: without trouble, until it closes again.
        trial_admissions_per_s: of unprotected requests while it is half open.
    """

    enabled: bool = True
    max_incidents_per_s: int = Field(default=5, ge=0, le=1_000_000)
    slow_step_ratio: float = Field(default=2.0, ge=1, le=1000)
    slow_step_floor_s: Duration = 0.05
    # 0.3: what is left of the 500 ms within which the engine reacts.
    open_after_s: float = Field(default=0.2, ge=0, le=0.3)
    cool_down_s: Duration = 5.0
    max_cool_down_s: Duration = 60.0
    quiet_s: Duration = 5.0
    trial_admissions_per_s: float = Field(default=2.0, gt=0, le=1000)

    @model_validator(mode="after")
    def _longest_is_longest(self) -> Self:
        if self.cool_down_s > self.max_cool_down_s:
            raise ValueError(
                f"cool_down_s ({self.cool_down_s:g}) is above "
                f"max_cool_down_s ({self.max_cool_down_s:g})"
            )
        return self


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
        preemption: by weight.
        reserve: of KV blocks.
        breaker: against memory and step-time trouble.
        state_dir: where engines tell the API servers in front of them which classes to
            refuse, one directory per server; None: in ``prometheus_multiproc_dir``.
        max_body_bytes: largest body of a request whose class or tenant comes in a header.
        held_back: requests of a class that the breaker does not admit ``wait`` in the
            queue, or the middleware is to ``refuse`` them with 503.
        allow_unsupported_vllm: start in a version of vLLM that the plugin is not tested with.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_nested_delimiter=SECTION_DELIMITER, frozen=True
    )

    control_plane: Annotated[str, AfterValidator(_host_port)] = "127.0.0.1:9440"
    engine_id: str = Field(default_factory=_this_process, pattern=r"^[!-~]{1,128}$")
    max_class_names: int = Field(default=32, ge=0, le=1000)
    report_interval_s: float = Field(default=1.0, gt=0, le=60)
    flush_interval_s: float = Field(default=0.25, gt=0, le=60)
    prometheus_multiproc_dir: str | None = Field(
        default=None, validation_alias="PROMETHEUS_MULTIPROC_DIR"
    )
    preemption: PreemptionSettings = PreemptionSettings()
    reserve: ReserveSettings = ReserveSettings()
    breaker: BreakerSettings = BreakerSettings()
    state_dir: str | None = None
    max_body_bytes: int = Field(default=32 * 2**20, ge=1)
    held_back: Literal["wait", "refuse"] = "wait"
    allow_unsupported_vllm: bool = False

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
    except SettingsError as error:  # a section's own variable holds no JSON object
        raise ConfigError(str(error)) from error


def _complaints(error: ValidationError) -> list[str]:
    return [
        f"{_variable(detail['loc'])}={detail['input']!r}: {detail['msg']}"
        for detail in error.errors()
    ]


def _variable(location: tuple[int | str, ...]) -> str:
    return ENV_PREFIX + SECTION_DELIMITER.join(str(part).upper() for part in location)
