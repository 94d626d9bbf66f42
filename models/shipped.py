"""The model that comes with a release, which a fresh registry starts with.

``make base-model`` trains it; ``models/base`` holds it. A release whose features changed since
has none that fits, and starts with an untrained network, which is the rule.
"""

from pathlib import Path

from models.bundle import Bundle
from models.errors import CorruptBundle, SchemaMismatch
from models.versions import RunRecord

FOLDER = Path(__file__).parent / "base"


def first_bundle(folder: Path = FOLDER) -> Bundle:
    """What a fresh registry starts with: the shipped model, or the rule where none fits."""
    try:
        return Bundle.load(folder)
    except (CorruptBundle, SchemaMismatch):
        return Bundle.untrained()


def first_record(bundle: Bundle) -> RunRecord:
    """What is to be remembered of it."""
    if not bundle.provenance.trained:
        return RunRecord("untrained", description="The rule: a network that corrects nothing.")
    return RunRecord(
        "base",
        tags={"training.kind": "base"},
        description=(
            "The model that comes with the release, trained in the simulator on drawn classes "
            "and loads. How it fares: docs/learning.md."
        ),
    )
