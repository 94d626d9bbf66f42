"""The models that are compared: out of a folder, the registry, or a fresh installation."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from benchmarks.errors import BenchmarkError
from benchmarks.learning.run import Model
from benchmarks.learning.units import POLICIES
from controlplane.config import RegistrySection
from models.bundle import WEIGHTS_FILE, Bundle
from models.errors import ModelError
from models.registry import Registry, RegistryLocation

FRESH = "fresh"
"""Name of what a fresh registry registers first."""


class NoSuchModel(BenchmarkError):
    """What was named is no model of this release."""


def models_of(specs: Sequence[str], scratch: Path) -> list[Model]:
    """Each model, in a folder.

    Args:
        specs: ``PATH`` or ``NAME=PATH``, where PATH is a bundle's folder, or ``@`` with a
            version or an alias of the registry; none: what a fresh registry starts with.
        scratch: an empty folder for what comes out of a registry.

    Raises:
        NoSuchModel: a bundle can't be loaded.
    """
    try:
        if not specs:
            return [_from_registry(FRESH, _fresh_registry(scratch), "champion", scratch)]
        return _distinct([_named(spec, scratch) for spec in specs])
    except (ModelError, OSError) as error:
        raise NoSuchModel(
            str(error), fix="pass --model NAME=FOLDER, or --model NAME=@champion"
        ) from error


def _distinct(models: list[Model]) -> list[Model]:
    taken = [*POLICIES, *(model.name for model in models)]
    for model in models:
        if taken.count(model.name) > 1:
            raise NoSuchModel(
                f"{model.name!r} is the name of another policy", fix="pass --model NAME=FOLDER"
            )
    return models


def _named(spec: str, scratch: Path) -> Model:
    name, found, place = spec.partition("=")
    place = place if found else spec
    if place.startswith("@"):
        section = RegistrySection()
        location = RegistryLocation(section.tracking_uri, section.artifact_root, section.model_name)
        return _from_registry(name, Registry(location), place[1:], scratch)
    folder = Path(place)
    Bundle.load(folder)  # refuse it before hours of work
    return _model(name if found else folder.name, folder)


def _fresh_registry(scratch: Path) -> Registry:
    registry = Registry(RegistryLocation(f"sqlite:///{scratch / 'mlflow.db'}"))
    registry.ensure_first_version()
    return registry


def _from_registry(name: str, registry: Registry, wanted: str, scratch: Path) -> Model:
    versions = [
        one.version for one in registry.versions() if wanted == one.version or wanted in one.aliases
    ]
    if not versions:
        raise NoSuchModel(
            f"the registry has no version @{wanted}", fix="`trimtab models list` shows them"
        )
    folder = scratch / f"version-{versions[0]}"
    registry.load(versions[0]).save(folder)
    return _model(name, folder)


def _model(name: str, folder: Path) -> Model:
    digest = hashlib.sha256((folder / WEIGHTS_FILE).read_bytes()).hexdigest()
    return Model(name, folder.resolve(), digest)
