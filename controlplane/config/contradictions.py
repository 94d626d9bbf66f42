"""Options that are fine by themselves and contradict each other. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controlplane.dither import LARGEST_SWING
from models.window import WINDOW_S

if TYPE_CHECKING:  # the options ask for their contradictions
    from collections.abc import Callable, Iterator

    from controlplane.config.options import Config


def contradictions(config: Config) -> Iterator[str]:
    """A line for each, which begins with the key."""
    for check in _CHECKS:
        yield from check(config)


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


_CHECKS: tuple[Callable[[Config], Iterator[str]], ...] = (
    _rules_name_classes,
    _floors_leave_room,
    _window_fits_ticks,
    _ttl_outlives_ticks,
    _answer_within_tick,
    _dither_fits_step,
    _turn_holds_ticks,
    _addresses_differ,
)
