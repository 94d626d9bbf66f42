"""Range queries to one Prometheus, with a time limit and typed failures."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import requests
from prometheus_api_client import PrometheusApiClientException, PrometheusConnect
from urllib3.util.retry import Retry

from controlplane.errors import MalformedAnswer, PrometheusRefused, PrometheusUnreachable


@dataclass(frozen=True, slots=True)
class Series:
    """One time series of an answer: (unix_s, value) points, oldest first."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]


class PrometheusSource:
    """A Prometheus, or whatever speaks its query API. Blocking; one caller at a time.

    Attributes:
        url: without a trailing slash.
        scrape_interval_s: how often it scrapes the engines.
    """

    def __init__(self, url: str, timeout_s: float, scrape_interval_s: float) -> None:
        self.url = url.rstrip("/")
        self.scrape_interval_s = scrape_interval_s
        self._timeout_s = timeout_s
        # The next tick is the retry: the client's own would wait for seconds. read=False
        # leaves a read timeout what it is.
        retry = Retry(total=0, read=False)
        self._client = PrometheusConnect(self.url, retry=retry, timeout=timeout_s)

    def query_range(
        self, promql: str, *, start_unix_s: int, end_unix_s: int, step_s: float
    ) -> list[Series]:
        """Evaluate ``promql`` at start, start + step, ... up to end, inclusive.

        The ends are whole seconds because the client would round them.

        Raises:
            PrometheusUnreachable: no connection, or no answer in time.
            PrometheusRefused: an HTTP error, a bad query included.
            MalformedAnswer: the body is no range result.
        """
        start, end = (
            datetime.fromtimestamp(unix_s, tz=UTC) for unix_s in (start_unix_s, end_unix_s)
        )
        try:
            answer = self._client.custom_query_range(promql, start, end, f"{step_s:g}")
            return [_series(item) for item in answer]
        except requests.JSONDecodeError as error:
            raise MalformedAnswer(f"{self.url} answered with something else than JSON") from error
        except requests.Timeout as error:
            raise PrometheusUnreachable(
                f"{self.url} did not answer within {self._timeout_s:g} s"
            ) from error
        except requests.RequestException as error:
            raise PrometheusUnreachable(f"{self.url} does not answer: {_cause(error)}") from error
        except PrometheusApiClientException as error:
            raise PrometheusRefused(f"{self.url} refused the query: {error}"[:500]) from error
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise MalformedAnswer(f"{self.url} answered with no range result") from error

    def close(self) -> None:
        """Drop the connections."""
        self._client.close()


def _series(item: Mapping[str, Any]) -> Series:
    """Values may be NaN or infinite; a point in time may not, and labels are text.

    Raises:
        KeyError, TypeError, ValueError: it is no series.
    """
    labels = dict(item["metric"])
    points = tuple((float(unix_s), float(value)) for unix_s, value in item["values"])
    if not all(isinstance(text, str) for pair in labels.items() for text in pair):
        raise TypeError("a label is no text")
    if not all(math.isfinite(unix_s) for unix_s, _ in points):
        raise ValueError("a point has no time")
    return Series(labels=labels, points=points)


def _cause(error: BaseException) -> str:
    """The innermost reason, such as 'Connection refused', without the wrapping."""
    reason = getattr(error.args[0], "reason", None) if error.args else None
    text = str(reason or error)
    return text.rsplit("] ", maxsplit=1)[-1] if "Errno" in text else text
