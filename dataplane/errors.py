"""What can go wrong in the plugin.

DataplaneError
├── ConfigError         an environment variable holds a value that cannot be used
├── SnapshotError       a snapshot breaks the protocol; its text goes into the NACK
└── RequestRefused      the middleware answers a request in vLLM's place
"""


class DataplaneError(Exception):
    """Anything that Trimtab's plugin raises by itself."""


class ConfigError(DataplaneError):
    """The engine must not start: its configuration is wrong."""


class SnapshotError(DataplaneError):
    """The engine stays on the snapshot it has; the text says why, for an operator."""


class RequestRefused(DataplaneError):
    """A client's request goes no further; the text says why, for the client.

    Attributes:
        status: of HTTP.
        kind: the error's ``type``, as vLLM names its own.
        param: what part of the request is wrong; None: none in particular.
        retry_after_s: when to try again; None: that would not help.
    """

    def __init__(
        self,
        status: int,
        kind: str,
        text: str,
        *,
        param: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(text)
        self.status = status
        self.kind = kind
        self.param = param
        self.retry_after_s = retry_after_s
