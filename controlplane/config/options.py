"""Everything an operator can set, in one object."""

from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from controlplane.clock import MIN_TICK_S
from controlplane.config.classes import MAX_CLASSES, MAX_RULES, ClassSection, RuleSection
from controlplane.config.contradictions import contradictions
from controlplane.config.steering import CanarySection, DitherSection, GuardrailsSection
from controlplane.config.surroundings import (
    LimitsSection,
    PrometheusSection,
    RegistrySection,
    StoreSection,
    TrainingSection,
)
from controlplane.config.values import Address, ClassName, LoopbackAddress, Seconds
from controlplane.guardrails import Bounds
from controlplane.snapshot import ClassRule, Discipline
from models.classes import TaskClass
from models.window import WINDOW_S


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
        problems = list(contradictions(self))
        if problems:
            raise ValueError("\n".join(problems))
        return self

    @property
    def task_classes(self) -> tuple[TaskClass, ...]:
        """The classes, in the file's order."""
        return tuple(section.named(name) for name, section in self.classes.items())

    @property
    def bounds(self) -> Bounds:
        """The guardrails' numbers."""
        return self.guardrails.bounds(tick_s=self.tick_s, staleness_s=self.prometheus.staleness_s)

    @property
    def class_rules(self) -> tuple[ClassRule, ...]:
        """The rules, in the file's order."""
        return tuple(ClassRule(**rule.model_dump()) for rule in self.rules)
