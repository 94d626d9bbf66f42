"""The one query that fetches every signal of every class. Pure.

Each signal is aggregated to one series per class and gets a `signal` label;
`or` joins them, so that a range query brings them all however many classes and
engines there are. Which metric means what: docs/architecture.md, "Metrics of an
engine".

Rates are taken before sums: only then is a counter that fell to zero with one
engine's restart seen as a reset, rather than as a negative rate of the fleet.
A gauge counts only while its sample is fresh: Prometheus goes on showing the
last sample of a series that ended without a staleness marker for five minutes.
"""

from models.window import Signal

SIGNAL_LABEL = "signal"
CLASS_LABEL = "task_class"
SAMPLE_TIME = "sample_unix_s"
"""Not a signal of the window: when the newest sample of a class was taken."""

SCRAPES_PER_RATE = 3
"""A rate needs two samples; the third lets one scrape fail."""

_SERVED = 'outcome=~"met|late|failed"'
_VIOLATED = 'outcome=~"late|failed"'


def lookback_s(step_s: float, scrape_interval_s: float) -> float:
    """How far back a rate looks and how old a gauge may be.

    One step, unless so few scrapes fall into it that rates would have gaps:
    then the window is smoothed over several steps, which is the price of a slow
    scrape.
    """
    return max(step_s, SCRAPES_PER_RATE * scrape_interval_s)


def signals_query(step_s: float, scrape_interval_s: float) -> str:
    """Every signal and the sample time, for all classes and engines."""
    reach = f"{round(lookback_s(step_s, scrape_interval_s) * 1000)}ms"
    by_signal = {**_rates(reach), **_gauges(reach), SAMPLE_TIME: _sample_time()}
    return " or ".join(
        f'label_replace({expression}, "{SIGNAL_LABEL}", "{name}", "", "")'
        for name, expression in by_signal.items()
    )


def _rates(reach: str) -> dict[str, str]:
    """Signals that come from counters."""
    finished = "trimtab_requests_finished_total"
    ttft_s = _rate("trimtab_ttft_seconds_sum", reach)
    first_tokens = _rate("trimtab_ttft_seconds_count", reach)
    return {
        Signal.ARRIVALS_PER_S: _rate("trimtab_requests_arrived_total", reach),
        Signal.FINISHED_PER_S: _rate(f"{finished}{{{_SERVED}}}", reach),
        Signal.VIOLATIONS_PER_S: _rate(f"{finished}{{{_VIOLATED}}}", reach),
        Signal.PROMPT_TOKENS_PER_S: _rate("trimtab_prompt_tokens_total", reach),
        Signal.GENERATION_TOKENS_PER_S: _rate("trimtab_generation_tokens_total", reach),
        # `> 0` drops the classes without a first token, which have no mean.
        Signal.TTFT_MEAN_S: f"{ttft_s} / ({first_tokens} > 0)",
    }


def _gauges(reach: str) -> dict[str, str]:
    """Signals that come from gauges: summed over engines, the wait is the longest."""
    reach_s = int(reach.removesuffix("ms")) / 1000
    return {
        Signal.WAITING: _fresh("sum", "trimtab_waiting_requests", reach_s),
        Signal.WAITING_PAST_SLO: _fresh("sum", "trimtab_waiting_past_slo_requests", reach_s),
        Signal.OLDEST_WAIT_S: _fresh("max", "trimtab_oldest_wait_seconds", reach_s),
    }


def _rate(counter: str, reach: str) -> str:
    return f"sum by ({CLASS_LABEL}) (rate({counter}[{reach}]))"


def _fresh(aggregate: str, gauge: str, reach_s: float) -> str:
    return (
        f"{aggregate} by ({CLASS_LABEL}) ({gauge} and (time() - timestamp({gauge}) <= {reach_s:g}))"
    )


def _sample_time() -> str:
    return f"max by ({CLASS_LABEL}) (timestamp(trimtab_waiting_requests))"
