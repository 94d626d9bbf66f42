"""Spans of time as people write them."""

import re

import typer

from models.window import STEP_S

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_LONGEST_S = 366 * _SECONDS["d"]


def duration_s(text: str) -> float:
    """Seconds of ``90s``, ``30m``, ``12h`` or ``7d``; from one step to a leap year."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    seconds = float(match[1]) * _SECONDS[match[2]] if match else 0.0
    if not STEP_S <= seconds <= _LONGEST_S:
        raise typer.BadParameter(
            f"{text!r} is no duration of {STEP_S:g}s to 366d; write 90s, 30m, 12h or 7d"
        )
    return seconds
