"""What can go wrong in the control plane.

ControlPlaneError
|- ConfigError               the configuration is wrong; the message names file and keys
|- AddressInUse              another process listens there
|- StoreError                the snapshot store can't be read or written
|- TelemetryError            there is no usable window
|  |- PrometheusUnreachable  no connection, or no answer in time
|  |- PrometheusRefused      it answered with an error
|  |- MalformedAnswer        it answered with something that is no query result
|  |- NoEngineMetrics        it has no metric of any engine
|  `- StaleWindow            the newest sample is too old
`- ClientError               a call to a control plane failed
   |- ControlPlaneAway       nothing answers at the address
   |- NoSuchSnapshot         never published, or past retention
   `- CallRefused            the control plane turned the call down
"""


class ControlPlaneError(Exception):
    """Root of everything the control plane raises by itself."""


class ConfigError(ControlPlaneError):
    """The configuration is wrong; one line per problem, each with its key."""


class AddressInUse(ControlPlaneError):
    """The address can't be bound.

    Attributes:
        address: host:port.
    """

    def __init__(self, address: str) -> None:
        super().__init__(f"{address} is in use by another process, or can't be bound")
        self.address = address


class StoreError(ControlPlaneError):
    """The snapshot store can't be read or written."""


class TelemetryError(ControlPlaneError):
    """There is no usable window."""


class PrometheusUnreachable(TelemetryError):
    """No connection, or no answer in time."""


class PrometheusRefused(TelemetryError):
    """Prometheus answered with an error."""


class MalformedAnswer(TelemetryError):
    """The answer is no query result."""


class NoEngineMetrics(TelemetryError):
    """Prometheus has no metric of any engine in the range."""


class StaleWindow(TelemetryError):
    """The newest sample is too old to act on.

    Attributes:
        age_s: how old it is.
        limit_s: how old it may be.
    """

    def __init__(self, *, age_s: float, limit_s: float) -> None:
        super().__init__(
            f"the newest engine sample is {age_s:.1f} s old, the limit is {limit_s:g} s"
        )
        self.age_s = age_s
        self.limit_s = limit_s


class ClientError(ControlPlaneError):
    """A call to a control plane failed."""


class ControlPlaneAway(ClientError):
    """Nothing answers at the address."""


class NoSuchSnapshot(ClientError):
    """The version was never published or is past retention."""


class CallRefused(ClientError):
    """The control plane turned the call down."""
