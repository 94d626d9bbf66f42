"""What can go wrong in the plugin.

DataplaneError
├── ConfigError         an environment variable holds a value that cannot be used
└── SnapshotError       a snapshot breaks the protocol; its text goes into the NACK
"""


class DataplaneError(Exception):
    """Anything that Trimtab's plugin raises by itself."""


class ConfigError(DataplaneError):
    """The engine must not start: its configuration is wrong."""


class SnapshotError(DataplaneError):
    """The engine stays on the snapshot it has; the text says why, for an operator."""
