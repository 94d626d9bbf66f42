"""What the settings make of requests that the breaker holds back."""

from pathlib import Path

import pytest

from dataplane.config import load_config
from dataplane.errors import ConfigError


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PROMETHEUS_MULTIPROC_DIR", "TRIMTAB_STATE_DIR", "TRIMTAB_HELD_BACK"):
        monkeypatch.delenv(name, raising=False)


def test_they_wait_unless_they_are_to_be_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMTAB_STATE_DIR", "/run/trimtab")
    assert load_config().notices_dir is None
    monkeypatch.setenv("TRIMTAB_HELD_BACK", "refuse")
    assert load_config().notices_dir == Path("/run/trimtab")


def test_notices_lie_beside_the_metrics_unless_they_have_a_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRIMTAB_HELD_BACK", "refuse")
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "/run/metrics")
    assert load_config().notices_dir == Path("/run/metrics")


def test_to_refuse_without_a_place_for_notices_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMTAB_HELD_BACK", "refuse")
    with pytest.raises(
        ConfigError,
        match=r"TRIMTAB_HELD_BACK='refuse'.*TRIMTAB_STATE_DIR or PROMETHEUS_MULTIPROC_DIR",
    ):
        load_config()


@pytest.mark.parametrize(("name", "value"), [("HELD_BACK", "shrug"), ("MAX_BODY_BYTES", "0")])
def test_a_value_that_cannot_be_used_is_an_error(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"TRIMTAB_{name}", value)
    with pytest.raises(ConfigError, match=f"TRIMTAB_{name}='{value}'"):
        load_config()
