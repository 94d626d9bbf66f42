"""The configuration out of a YAML file and the environment."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_settings import SettingsError

from controlplane.config.options import Config
from controlplane.config.yaml_file import YamlFileError, read_mapping
from controlplane.errors import ConfigError


def load_config(path: Path) -> Config:
    """Read and validate file and environment.

    Raises:
        ConfigError: one line per problem, with file and key.
    """
    try:
        return Config(**read_mapping(path))
    except YamlFileError as error:
        raise ConfigError(f"{path}: {error}") from error
    except SettingsError as error:
        raise ConfigError(f"environment: {error}: {error.__cause__}") from error
    except ValidationError as error:
        lines = [line for problem in error.errors() for line in _lines(problem)]
        raise ConfigError("\n".join(f"{path}: {line}" for line in lines)) from error


def _lines(problem: Any) -> Iterator[str]:
    """One pydantic problem as 'key: what is wrong'; a cross-check may hold several."""
    key = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        yield f"{key}: there is no such option"
        return
    for line in problem["msg"].removeprefix("Value error, ").splitlines():
        yield f"{key}: {line}" if key else line
