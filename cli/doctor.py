"""`trimtab doctor`: is everything that the control plane needs there, and if not, what to do."""

import importlib.util
import socket
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from cli.failure import ExitCode
from cli.serve import configuration
from controlplane.client import WeightsClient
from controlplane.clock import SystemClock
from controlplane.config import Config
from controlplane.errors import ClientError, NoEngineMetrics, StaleWindow, TelemetryError
from controlplane.snapshot import Mode
from controlplane.telemetry.source import PrometheusSource
from controlplane.telemetry.window import fetch_window
from models.errors import ModelError
from models.versions import RegistryLocation


class Health(StrEnum):
    """How one check went."""

    OK = "ok"
    WARN = "warn"
    """Trimtab works, but not with this."""
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found; ``fix`` is empty when there is nothing to fix."""

    health: Health
    subject: str
    detail: str
    fix: str = ""


DEFAULT_CLASS = "default"
"""Of requests that name no class and match no rule; the protocol's name."""
_COLOURS = {Health.OK: "green", Health.WARN: "yellow", Health.FAIL: "red"}


def doctor(
    config: Annotated[
        Path, typer.Option("--config", "-c", help="The control plane's YAML file.")
    ] = Path("trimtab.yaml"),
) -> None:
    """Check Prometheus, the registry, the control plane, its ports and the plugin."""
    settings = configuration(config)
    console = Console(soft_wrap=True, highlight=False)
    findings = [finding for check in CHECKS for finding in check(settings)]
    for finding in findings:
        status = f"{finding.health:4}", _COLOURS[finding.health]
        # Details quote what others answered: no markup in them.
        console.print(Text.assemble(status, f" {finding.subject}: {finding.detail}"))
        if finding.fix:
            console.print(Text(f"     fix: {finding.fix}"))
    if any(finding.health is Health.FAIL for finding in findings):
        raise typer.Exit(ExitCode.FAILED)


def check_prometheus(config: Config) -> list[Finding]:
    """Does it answer, and does it scrape engines?"""
    settings = config.prometheus
    source = PrometheusSource(settings.url, settings.timeout_s, settings.scrape_interval_s)
    try:
        window = fetch_window(
            source,
            tuple(config.classes),
            end_unix_s=SystemClock().unix_s(),
            staleness_s=settings.staleness_s,
        )
    except (NoEngineMetrics, StaleWindow) as error:
        fix = "start an engine with the plugin, and add it to Prometheus's scrape_configs"
        return [
            Finding(Health.OK, "prometheus", f"{settings.url} answers"),
            Finding(Health.WARN, "engine metrics", str(error), fix),
        ]
    except TelemetryError as error:
        fix = "start Prometheus, or set prometheus.url"
        return [Finding(Health.FAIL, "prometheus", str(error), fix)]
    finally:
        source.close()
    classes = ", ".join(window.task_classes)
    return [Finding(Health.OK, "prometheus", f"{settings.url} has fresh samples of {classes}")]


def check_registry(config: Config) -> list[Finding]:
    """Can the champion be loaded?"""
    from models.registry import Registry  # noqa: PLC0415 - it imports torch, which takes seconds

    settings = config.registry
    location = RegistryLocation(settings.tracking_uri, settings.artifact_root, settings.model_name)
    try:
        registry = Registry(location)
        version = registry.champion_version()
        if version is None:
            fix = "`trimtab serve` registers a first one; `trimtab models promote` names another"
            return [Finding(Health.WARN, "champion", "the registry names none", fix)]
        registry.load(version)
    except ModelError as error:
        fix = "check registry.tracking_uri, or promote another version"
        return [Finding(Health.FAIL, "champion", str(error), fix)]
    return [Finding(Health.OK, "champion", f"version {version} loads")]


def check_control_plane(config: Config) -> list[Finding]:
    """Does it answer? If not, are its ports free for it?"""
    try:
        with WeightsClient(config.listen, timeout_s=2.0) as client:
            status = client.status()
    except ClientError:
        fix = "`trimtab serve --config FILE`"
        absent = Finding(Health.WARN, "control plane", f"none answers at {config.listen}", fix)
        return [absent, *_ports(config)]
    engines = len(status.engines)
    steered = status.mode in {Mode.LEARNED, Mode.RULE}
    detail = f"version {status.version}, {status.mode} ({status.mode_reason}), {engines} engines"
    if not engines:
        fix = "start vLLM with --scheduler-cls dataplane.scheduler.TrimtabScheduler"
        return [Finding(Health.WARN, "control plane", detail, fix)]
    if not steered:
        fix = "see to the reason given; until then the weights follow no measurement"
        return [Finding(Health.WARN, "control plane", detail, fix)]
    return [Finding(Health.OK, "control plane", detail)]


def check_classes(config: Config) -> list[Finding]:
    """Is there a class for requests that name none?"""
    if DEFAULT_CLASS in config.classes:
        return []
    fix = f"configure a class `{DEFAULT_CLASS}`, unless every request names its class"
    detail = "requests that name no configured class get the least weight"
    return [Finding(Health.WARN, "classes", f"no `{DEFAULT_CLASS}`: {detail}", fix)]


def check_plugin(config: Config) -> list[Finding]:  # noqa: ARG001 - the checks share a signature
    """Could a vLLM in this environment load the plugin?"""
    missing = [name for name in ("vllm", "dataplane") if importlib.util.find_spec(name) is None]
    if missing:
        fix = "install Trimtab with its [vllm] extra where vLLM is, if that is not here"
        return [Finding(Health.WARN, "plugin", f"no {' and no '.join(missing)} here", fix)]
    return [Finding(Health.OK, "plugin", "vLLM and the plugin are installed here")]


def _ports(config: Config) -> list[Finding]:
    findings = []
    for key, address in (("listen", config.listen), ("metrics_listen", config.metrics_listen)):
        problem = _why_not_bindable(address)
        if problem is None:
            findings.append(Finding(Health.OK, key, f"{address} is free"))
        else:
            fix = f"stop what listens there, or change {key}"
            findings.append(Finding(Health.FAIL, key, f"{address}: {problem}", fix))
    return findings


def _why_not_bindable(address: str) -> str | None:
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), int(port)))
        except OSError as error:
            return error.strerror
    return None


CHECKS: tuple[Callable[[Config], list[Finding]], ...] = (
    check_classes,
    check_prometheus,
    check_registry,
    check_control_plane,
    check_plugin,
)
