import os
import socket

import pytest

from dataplane.config import (
    BreakerSettings,
    PreemptionSettings,
    ReserveSettings,
    load_config,
)
from dataplane.errors import ConfigError


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TRIMTAB_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)


def test_without_environment_it_follows_the_local_control_plane() -> None:
    config = load_config()
    assert config.control_plane == "127.0.0.1:9440"
    assert config.engine_id == f"{socket.gethostname()}:{os.getpid()}"
    assert config.prometheus_multiproc_dir is None


def test_each_variable_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "TRIMTAB_CONTROL_PLANE": "[::1]:19440",
        "TRIMTAB_ENGINE_ID": "gpu-3",
        "TRIMTAB_MAX_CLASS_NAMES": "5",
        "TRIMTAB_REPORT_INTERVAL_S": "2.5",
        "TRIMTAB_FLUSH_INTERVAL_S": "0.5",
        "TRIMTAB_PREEMPTION__MIN_RUN_S": "0.25",
        "TRIMTAB_RESERVE__FACTOR_P0": "2.5",
        "TRIMTAB_BREAKER__QUIET_S": "7.5",
        "PROMETHEUS_MULTIPROC_DIR": "/run/metrics",
        "TRIMTAB_ALLOW_UNSUPPORTED_VLLM": "true",
    }.items():
        monkeypatch.setenv(name, value)
    config = load_config()
    assert (config.control_plane, config.engine_id, config.max_class_names) == (
        *("[::1]:19440", "gpu-3", 5),
    )
    assert (config.report_interval_s, config.flush_interval_s) == (2.5, 0.5)
    assert config.preemption == PreemptionSettings(min_run_s=0.25)
    assert config.reserve == ReserveSettings(factor_p0=2.5)
    assert config.breaker == BreakerSettings(quiet_s=7.5)
    assert config.prometheus_multiproc_dir == "/run/metrics"
    assert config.allow_unsupported_vllm


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TRIMTAB_CONTROL_PLANE", "localhost"),
        ("TRIMTAB_CONTROL_PLANE", "localhost:0"),
        ("TRIMTAB_CONTROL_PLANE", "localhost:70000"),
        ("TRIMTAB_CONTROL_PLANE", "http://localhost:9440"),
        ("TRIMTAB_ENGINE_ID", ""),
        ("TRIMTAB_ENGINE_ID", "with space"),
        ("TRIMTAB_MAX_CLASS_NAMES", "-1"),
        ("TRIMTAB_REPORT_INTERVAL_S", "soon"),
        ("TRIMTAB_FLUSH_INTERVAL_S", "0"),
        ("TRIMTAB_PREEMPTION__WEIGHT_RATIO", "1.0"),
        ("TRIMTAB_RESERVE__FACTOR_P2", "0.9"),
        ("TRIMTAB_HELD_BACK", "shrug"),
        ("TRIMTAB_BREAKER__COOLDOWN_S", "5"),
        ("TRIMTAB_ALLOW_UNSUPPORTED_VLLM", "perhaps"),
    ],
)
def test_a_bad_value_is_refused_with_the_variable_and_the_value(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as refusal:
        load_config()
    assert f"{name}={value!r}: " in str(refusal.value)


def test_a_cool_down_above_the_longest_is_refused_with_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRIMTAB_BREAKER__COOL_DOWN_S", "90")
    with pytest.raises(ConfigError, match=r"TRIMTAB_BREAKER=.*cool_down_s \(90\).*\(60\)"):
        load_config()


def test_a_section_that_is_no_json_object_is_refused_with_the_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRIMTAB_BREAKER", "off")
    with pytest.raises(ConfigError, match="breaker"):
        load_config()
