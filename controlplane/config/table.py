"""The configuration as a Markdown table, out of the model itself."""

import typing
from collections.abc import Iterator

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from controlplane.config import Config


def config_table() -> str:
    """One row per option: key, default, meaning."""
    rows = [f"| `{key}` | {default} | {meaning} |" for key, default, meaning in _rows(Config, "")]
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *rows])


def _rows(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str, str]]:
    for name, field in model.model_fields.items():
        key = f"{prefix}{name}"
        section, suffix = _section(field)
        if section is None:
            yield key, _default(field), field.description or ""
        else:
            yield from _rows(section, f"{key}{suffix}.")


def _section(field: FieldInfo) -> tuple[type[BaseModel] | None, str]:
    """The nested model of a field, and how its entries are keyed."""
    annotation = field.annotation
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, ""
    for argument in typing.get_args(annotation):
        if isinstance(argument, type) and issubclass(argument, BaseModel):
            return argument, ".NAME" if typing.get_origin(annotation) is dict else "[]"
    return None, ""


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "required"
    return "none" if field.default is None else f"`{field.default}`"


if __name__ == "__main__":
    print(config_table())  # noqa: T201 - this is the command's output
