"""The control plane's one configuration object: a YAML file, then the environment.

Environment variables start with TRIMTAB_ and reach into sections with a double
underscore: TRIMTAB_PROMETHEUS__URL. They win over the file. Every default is
written here and nowhere else; `python -m controlplane.config_table` prints them.
"""

import ipaddress
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from controlplane.canary import TrialLimits, TrialPolicy
from controlplane.clock import MIN_TICK_S
from controlplane.dither import LARGEST_SWING, MAX_AMPLITUDE
from controlplane.errors import ConfigError
from controlplane.guardrails import Bounds
from controlplane.modes import MissLimits
from controlplane.snapshot import ClassRule, Discipline
from controlplane.yaml_file import YamlFileError, read_mapping
from models.classes import LatePolicy, Slo, TaskClass, Tier
from models.window import STEP_S, WINDOW_S

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Seconds = Positive
ClassName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
Tokens = Annotated[int, Field(ge=0, lt=2**32)]
"""As many as the protocol can say."""
Priority = Annotated[int, Field(ge=-(2**31), lt=2**31)]
"""Likewise."""
ShortText = Annotated[str, Field(min_length=1, max_length=256)]

MAX_CLASSES = 256
"""Engines refuse snapshots with more."""
MAX_RULES = 256
"""Likewise."""


def _address(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isdecimal() and int(port) <= 65535):  # noqa: PLR2004 - the last port
        raise ValueError(f"expected host:port, got {text!r}")
    return text


def _loopback(text: str) -> str:
    host = text.rpartition(":")[0].strip("[]")
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise ValueError(
            f"{host} is not a loopback address, and there is no TLS yet to listen on others with"
        )
    return text


Address = Annotated[str, AfterValidator(_address)]
LoopbackAddress = Annotated[Address, AfterValidator(_loopback)]


class Section(BaseModel):
    """Part of the configuration. Unknown keys are errors: they would do nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True)


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


class GuardrailsSection(Section):
    """Bounds on what any model may do."""

    max_log_share_step: Positive = Field(
        0.2, description="largest change of a class's log-share in one tick"
    )
    mutation_log_share_step: Positive = Field(
        1.0, description="the same, in a tick in which arrivals of a class jump"
    )
    mutation_score: Positive = Field(
        6.0, description="standard errors by which a rate of arrivals must change for a jump"
    )
    familiar_within: float = Field(
        0.25,
        ge=0,
        description="how far a feature may be outside its range in training, in widths of that "
        "range, before the model's say is reduced",
    )
    unfamiliar_beyond: float = Field(1.0, gt=0, description="likewise; from here on the rule plays")
    hysteresis_start: float = Field(
        0.02, ge=0, description="shares move once a log-share is off by more"
    )
    hysteresis_stop: float = Field(
        0.005, ge=0, description="and until none moves by more in one tick"
    )
    budget_ratio: float = Field(
        1.05, ge=1, description="the model's estimated cost over the rule's; above, the rule plays"
    )
    budget_allowance: float = Field(
        1.0, ge=0, description="on top of it, in ticks in which all value is lost"
    )
    budget_half_life_s: Seconds = Field(
        3600.0, description="after that long an estimated cost counts half"
    )
    hold_after_missed: int = Field(
        2, ge=1, description="missed windows in a row until the mode is `hold`"
    )
    static_after_missed: int = Field(
        6, ge=2, description="missed windows in a row until the mode is `static`"
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        MissLimits(self.hold_after_missed, self.static_after_missed)
        self.bounds(tick_s=1.0, staleness_s=1.0)
        return self

    def bounds(self, *, tick_s: float, staleness_s: float) -> Bounds:
        """The guardrails' numbers, times in ticks and steps.

        Raises:
            ValueError: two of them contradict each other; the message names both.
        """
        return Bounds(
            max_log_share_step=self.max_log_share_step,
            mutation_log_share_step=self.mutation_log_share_step,
            mutation_score=self.mutation_score,
            familiar_within=self.familiar_within,
            unfamiliar_beyond=self.unfamiliar_beyond,
            hysteresis_start=self.hysteresis_start,
            hysteresis_stop=self.hysteresis_stop,
            budget_ratio=self.budget_ratio,
            budget_allowance=self.budget_allowance,
            budget_half_life_ticks=self.budget_half_life_s / tick_s,
            stale_steps=max(1, math.ceil(staleness_s / STEP_S)),
        )

    @property
    def miss_limits(self) -> MissLimits:
        """The two limits on missed windows."""
        return MissLimits(self.hold_after_missed, self.static_after_missed)


class DitherSection(Section):
    """Small known changes of the weights, so that what they do can be told."""

    amplitude: float = Field(
        0.0, ge=0, le=MAX_AMPLITUDE, description="in log-weight, before the guardrails; 0: none"
    )
    hold_s: Seconds = Field(30.0, description="how long a change lasts before it is drawn anew")
    seed: int = Field(0, description="of the changes")
    include_p0: bool = Field(
        default=False, description="whether classes of tier `p0` are changed, too"
    )


class CanarySection(Section):
    """Another model on some of the engines, by turns with the champion."""

    enabled: bool = Field(
        default=True,
        description="try a challenger whose gates passed, promote it if it is no worse, and watch "
        "a new champion, going back if it does harm",
    )
    ratio: float = Field(0.1, gt=0, le=1, description="part of the engines; at least one")
    block_s: Seconds = Field(60.0, description="length of a turn")
    washout_s: float = Field(
        15.0, ge=0, description="start of a turn that does not count: the queues are still old"
    )
    alpha: float = Field(
        0.05, gt=0, lt=1, description="probability of a wrong `harm`, and of a wrong `no_worse`"
    )
    margin: float = Field(
        0.05,
        gt=0,
        lt=1,
        description="by which the part of the value that is lost may be larger and still be no "
        "worse",
    )
    max_pairs: int = Field(
        480, ge=1, le=100_000, description="pairs of turns until a trial ends undecided"
    )
    watch_s: float = Field(
        86_400.0, ge=0, description="how long a new champion is watched at most; 0: not at all"
    )

    @property
    def policy(self) -> TrialPolicy:
        """The same, as the trials take it."""
        return TrialPolicy(
            ratio=self.ratio,
            block_s=self.block_s,
            washout_s=self.washout_s,
            limits=TrialLimits(self.alpha, self.margin, self.max_pairs),
            watch_s=self.watch_s,
        )


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


class SloSection(Section):
    """Objective of a class."""

    ttft_s: Seconds = Field(description="time to first token")
    tpot_s: Seconds | None = Field(None, description="time per output token after the first")
    e2e_s: Seconds | None = Field(None, description="arrival to last token")


class ClassSection(Section):
    """One task class."""

    slo: SloSection
    value: float = Field(
        1.0, gt=0, allow_inf_nan=False, description="worth of one request that meets its SLO"
    )
    floor: float = Field(0.0, ge=0, lt=1, description="least share of the weight")
    late: LatePolicy = Field(
        LatePolicy.SERVE, description="`serve` or `demote` requests already past their SLO"
    )
    max_wait_s: Seconds | None = Field(None, description="a request that waited longer goes first")
    tier: Tier = Field(
        Tier.P1,
        description="`p0`, `p1` or `p2`: who is held back last when memory or time run short",
    )


class RuleSection(Section):
    """Puts requests that name no class into one. All conditions given must hold."""

    task_class: ClassName = Field(description="a configured class")
    min_prompt_tokens: Tokens | None = Field(None, description="inclusive")
    max_prompt_tokens: Tokens | None = Field(None, description="inclusive")
    min_max_tokens: Tokens | None = Field(
        None, description="of the most tokens that may be generated; inclusive"
    )
    max_max_tokens: Tokens | None = Field(None, description="inclusive")
    lora: ShortText | None = Field(None, description="the adapter's name")
    min_priority: Priority | None = Field(
        None, description="of the API's `priority`, where small is urgent; inclusive"
    )
    max_priority: Priority | None = Field(None, description="inclusive")
    tenant: ShortText | None = Field(None, description="`vllm_xargs.tenant`, or `X-Tenant`")
    streaming: bool | None = Field(None, description="whether the answer is streamed")

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        for subject in ("prompt_tokens", "max_tokens", "priority"):
            low, high = getattr(self, f"min_{subject}"), getattr(self, f"max_{subject}")
            if low is not None and high is not None and low > high:
                raise ValueError(f"min_{subject} ({low}) is above max_{subject} ({high})")
        return self


class Config(BaseSettings):
    """Everything an operator can set."""

    model_config = SettingsConfigDict(
        env_prefix="TRIMTAB_", env_nested_delimiter="__", extra="forbid", frozen=True
    )

    listen: LoopbackAddress = Field(
        "127.0.0.1:9440", description="gRPC address; loopback only, as there is no TLS yet"
    )
    metrics_listen: Address = Field(
        "127.0.0.1:9441", description="HTTP address of the control plane's own `/metrics`"
    )
    tick_s: float = Field(5.0, ge=MIN_TICK_S, le=WINDOW_S, description="time between two decisions")
    ttl_s: Seconds = Field(
        30.0, description="an engine that hears nothing for so long turns to neutral weights"
    )
    discipline: Discipline = Field(
        Discipline.APQ, description="how engines order requests, until it is changed at run time"
    )
    prometheus: PrometheusSection = PrometheusSection()
    store: StoreSection = StoreSection()
    registry: RegistrySection = RegistrySection()
    guardrails: GuardrailsSection = GuardrailsSection()
    dither: DitherSection = DitherSection()
    canary: CanarySection = CanarySection()
    training: TrainingSection = TrainingSection()
    limits: LimitsSection = LimitsSection()
    classes: dict[ClassName, ClassSection] = Field(
        min_length=1, max_length=MAX_CLASSES, description="the task classes, by name"
    )
    rules: tuple[RuleSection, ...] = Field(
        (), max_length=MAX_RULES, description="first match decides for requests that name no class"
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the signature is pydantic's
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the same
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the same
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment wins over the file, whose content comes as arguments."""
        return env_settings, init_settings

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = [problem for check in _CROSS_CHECKS for problem in check(self)]
        if problems:
            raise ValueError("\n".join(problems))
        return self

    @property
    def task_classes(self) -> tuple[TaskClass, ...]:
        """The classes, in the file's order."""
        return tuple(
            TaskClass(
                name=name,
                slo=Slo(section.slo.ttft_s, section.slo.tpot_s, section.slo.e2e_s),
                value=section.value,
                floor=section.floor,
                late=section.late,
                max_wait_s=section.max_wait_s,
                tier=section.tier,
            )
            for name, section in self.classes.items()
        )

    @property
    def bounds(self) -> Bounds:
        """The guardrails' numbers."""
        return self.guardrails.bounds(tick_s=self.tick_s, staleness_s=self.prometheus.staleness_s)

    @property
    def class_rules(self) -> tuple[ClassRule, ...]:
        """The rules, in the file's order."""
        return tuple(ClassRule(**rule.model_dump()) for rule in self.rules)


def load_config(path: Path) -> Config:
    """Read and validate file and environment.

    Raises:
        ConfigError: one line per problem, with file and key.
    """
    try:
        return Config(**read_mapping(path))
    except YamlFileError as error:
        raise ConfigError(f"{path}: {error}") from error
    except SettingsError as error:
        raise ConfigError(f"environment: {error}: {error.__cause__}") from error
    except ValidationError as error:
        lines = [line for problem in error.errors() for line in _lines(problem)]
        raise ConfigError("\n".join(f"{path}: {line}" for line in lines)) from error


def _lines(problem: Any) -> Iterator[str]:
    """One pydantic problem as 'key: what is wrong'; a cross-check may hold several."""
    key = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        yield f"{key}: there is no such option"
        return
    for line in problem["msg"].removeprefix("Value error, ").splitlines():
        yield f"{key}: {line}" if key else line


def _rules_name_classes(config: Config) -> Iterator[str]:
    known = ", ".join(config.classes)
    for index, rule in enumerate(config.rules):
        if rule.task_class not in config.classes:
            key = f"rules.{index}.task_class"
            yield f"{key}: {rule.task_class!r} is not one of the classes ({known})"


def _floors_leave_room(config: Config) -> Iterator[str]:
    total = sum(section.floor for section in config.classes.values())
    if total >= 1:
        floors = ", ".join(f"{name} {section.floor:g}" for name, section in config.classes.items())
        yield f"classes: the floors ({floors}) sum to {total:g}, which must be below 1"


def _window_fits_ticks(config: Config) -> Iterator[str]:
    if WINDOW_S % config.tick_s:
        yield f"tick_s: the window ({WINDOW_S:g} s) is not a multiple of tick_s ({config.tick_s:g})"


def _ttl_outlives_ticks(config: Config) -> Iterator[str]:
    if config.ttl_s < 2 * config.tick_s:
        yield (
            f"ttl_s: {config.ttl_s:g} is below twice tick_s ({config.tick_s:g}): "
            "one lost tick would turn the engines neutral"
        )


def _answer_within_tick(config: Config) -> Iterator[str]:
    if config.prometheus.timeout_s >= config.tick_s:
        yield (
            f"prometheus.timeout_s: {config.prometheus.timeout_s:g} must be below "
            f"tick_s ({config.tick_s:g})"
        )


def _dither_fits_step(config: Config) -> Iterator[str]:
    swing = LARGEST_SWING * config.dither.amplitude
    step = config.guardrails.max_log_share_step
    if swing > step:
        yield (
            f"dither.amplitude: a class's log-share may change by {LARGEST_SWING} times as much "
            f"({swing:g}), and guardrails.max_log_share_step ({step:g}) would not let that through"
        )


def _turn_holds_ticks(config: Config) -> Iterator[str]:
    counted_s = config.canary.block_s - config.canary.washout_s
    if config.canary.enabled and counted_s < 2 * config.tick_s:
        yield (
            f"canary.block_s: {config.canary.block_s:g} leaves {counted_s:g} s after washout_s "
            f"({config.canary.washout_s:g}), less than two ticks of tick_s ({config.tick_s:g})"
        )


def _addresses_differ(config: Config) -> Iterator[str]:
    if config.listen == config.metrics_listen and not config.listen.endswith(":0"):
        yield f"metrics_listen: {config.metrics_listen} is also the address of listen"


_CROSS_CHECKS: tuple[Callable[[Config], Iterator[str]], ...] = (
    _rules_name_classes,
    _floors_leave_room,
    _window_fits_ticks,
    _ttl_outlives_ticks,
    _answer_within_tick,
    _dither_fits_step,
    _turn_holds_ticks,
    _addresses_differ,
)
