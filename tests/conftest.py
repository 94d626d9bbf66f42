"""What holds for all tests."""

from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings

# A machine that is busy with other things is slow, and that is no fault of what is tested.
settings.register_profile("trimtab", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("trimtab")


@pytest.fixture(autouse=True)
def _own_log() -> Iterator[None]:
    """A command that a test runs sets the log up for the whole process, to a stream of its own."""
    yield
    structlog.reset_defaults()
