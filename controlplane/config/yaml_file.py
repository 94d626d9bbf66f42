"""A YAML file as one mapping, strictly: YAML itself lets the last of two equal keys win."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml


class YamlFileError(Exception):
    """The file can't be read as one mapping; the message says why and where."""


def read_mapping(path: Path) -> dict[str, Any]:
    """The file's content; an empty file is an empty mapping.

    Raises:
        YamlFileError: unreadable, no YAML, no mapping, or a key stands there twice.
    """
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _StrictLoader)  # noqa: S506 - a SafeLoader
    except OSError as error:
        raise YamlFileError(f"can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise YamlFileError(f"is not UTF-8 text: {error.reason}") from error
    except yaml.YAMLError as error:
        raise YamlFileError(f"is not valid YAML: {error}") from error
    except ValueError as error:  # what looks like a date or a number and is none
        raise YamlFileError(f"holds a value that can't be read: {error}") from error
    except RecursionError as error:
        raise YamlFileError("is nested too deeply") from error
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise YamlFileError("must be a mapping from option names to values")
    return content


class _StrictLoader(yaml.SafeLoader):
    """Refuses duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002 - the signature is PyYAML's
        """As the parent, after a look at the keys."""
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(
                    None, None, "a list or a mapping can't be a key", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key!r} stands here twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)
