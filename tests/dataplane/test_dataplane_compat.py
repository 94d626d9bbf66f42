import logging

import pytest

from dataplane.compat import require_supported
from dataplane.errors import ConfigError


@pytest.mark.parametrize(
    "version",
    [
        "0.31.0",
        "0.31.7",
        "0.32.0",
        "0.32.0+cpu",
        "0.32.1.dev3+cpu",
        "0.32.1rc1.dev40+g1a2b3c4.cu130",
    ],
)
def test_a_tested_version_and_builds_of_it_are_let_in(version: str) -> None:
    require_supported(version, allow_unsupported=False)


@pytest.mark.parametrize(
    "version",
    [
        "0.30.2",
        "0.31.0rc1",
        "0.33.0",
        "0.33.0.dev5+g1a2b3c4",
        "1.0.0",
        "dev",
        "unknown version",
        "",
    ],
)
def test_any_other_version_is_refused_with_the_range_and_the_way_around(version: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        require_supported(version, allow_unsupported=False)
    for part in (repr(version), "vllm>=0.31,<0.33", "TRIMTAB_ALLOW_UNSUPPORTED_VLLM=true"):
        assert part in str(refusal.value)


def test_an_operator_may_run_an_untested_version_and_is_warned(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    require_supported("0.33.0", allow_unsupported=True)
    # Threads of other tests' engines may still say something, and more than one handler listen.
    said = {
        (one.levelno, one.getMessage())
        for one in caplog.records
        if "is not supported" in one.getMessage()
    }
    ((level, message),) = said
    assert level == logging.WARNING
    assert "'0.33.0'" in message
