"""What can go wrong with a model.

ModelError
├── RegistryUnavailable   the store does not answer, or answers nonsense
├── UnknownVersion        no such version
├── SchemaMismatch        made for other features or another network
├── CorruptBundle         its files are missing, changed or not what they say
├── PromotionRefused      a gate failed, or it was rolled back before
└── NothingToRollBackTo   no version is @previous
"""


class ModelError(Exception):
    """Root of this package's errors."""


class RegistryUnavailable(ModelError):
    """The registry does not answer, or refuses the call."""


class UnknownVersion(ModelError):
    """The registry holds no such version.

    Attributes:
        version: what was asked for.
    """

    def __init__(self, version: str, *, model_name: str) -> None:
        """Name version and model."""
        self.version = version
        super().__init__(f"model {model_name!r} has no version {version!r}")


class SchemaMismatch(ModelError):
    """The bundle was made for other features or another network.

    Attributes:
        found: the bundle's hash.
        expected: this process's hash.
    """

    def __init__(self, *, found: str, expected: str) -> None:
        """Name both hashes."""
        self.found = found
        self.expected = expected
        super().__init__(f"the bundle has schema {found}, this process needs {expected}")


class PromotionRefused(ModelError):
    """Something is known against the version.

    Attributes:
        version: what was to be promoted.
        objection: why it was not.
    """

    def __init__(self, version: str, objection: str) -> None:
        """Name both."""
        self.version = version
        self.objection = objection
        super().__init__(f"version {version} is not promoted: {objection}")


class NothingToRollBackTo(ModelError):
    """No version is ``@previous``."""

    def __init__(self, model_name: str) -> None:
        """Name the model."""
        super().__init__(f"no version of model {model_name!r} is @previous")


class CorruptBundle(ModelError):
    """The bundle's files are missing, changed, or do not hold a usable network."""
