"""The README says what the code does."""

import re
from collections.abc import Iterator
from pathlib import Path

import typer.main
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from cli.main import app
from controlplane.config import load_config
from controlplane.config.table import config_table
from dataplane.config import DataplaneConfig

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def test_the_configuration_table_is_the_generated_one() -> None:
    assert config_table().strip() in README, "paste `python -m controlplane.config.table`"


def variables(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from variables(field.annotation, f"{prefix}{name.upper()}__")
        else:
            yield str(field.validation_alias or f"{prefix}{name.upper()}"), field


def test_the_plugins_table_has_every_variable_with_its_default() -> None:
    documented = dict(re.findall(r"^\| `([A-Z0-9_]+)` \| (.*?) \|", README, re.MULTILINE))
    fields = dict(variables(DataplaneConfig, "TRIMTAB_"))
    assert documented.keys() == fields.keys()
    for variable, field in fields.items():
        if field.default_factory is None and field.default is not None:
            assert documented[variable] == f"`{field.default}`"


def test_the_commands_in_the_readme_are_those_that_exist() -> None:
    named = set(re.findall(r"`trimtab ([a-z]+)", README)) | set(
        re.findall(r"^ *trimtab ([a-z]+)", README, re.MULTILINE)
    )
    commands: dict[str, object] = getattr(typer.main.get_command(app), "commands", {})
    assert named | {"demo"} == set(commands)


def test_every_file_the_readme_links_to_exists() -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_the_example_configuration_loads() -> None:
    assert load_config(ROOT / "deploy" / "trimtab.yaml").classes


def test_the_example_scrape_configuration_is_yaml_with_the_plugins_target() -> None:
    scrape = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text())
    assert {job["job_name"] for job in scrape["scrape_configs"]} == {"vllm", "trimtab"}
