"""Fixtures of the plugin's tests."""

from collections.abc import Iterator

import pytest
from loopback_control_plane import ControlPlane, HandClock


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def control_plane() -> Iterator[ControlPlane]:
    plane = ControlPlane()
    yield plane
    plane.kill()
