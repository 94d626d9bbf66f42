"""A network with what it needs to be trusted: its schema, its origin, its checksum.

Shapes: C classes, F features.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from models.classes import TaskClass
from models.errors import CorruptBundle, SchemaMismatch
from models.familiarity import FeatureRanges
from models.features import FEATURE_NAMES, encode, schema_hash
from models.lstm import RESIDUAL, VIOLATION, ResidualLstm
from models.rule import rule_shares
from models.window import Window

WEIGHTS_FILE = "network.safetensors"
MANIFEST_FILE = "bundle.json"
UNTRAINED = "untrained"
"""Origin of a network that expects nothing in particular."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a network comes from.

    Attributes:
        origin: `UNTRAINED`, or what trained it.
        seed: of the initial weights and of the order of training examples.
        data_start_unix_s: start of the history it saw; None: it saw none.
        data_end_unix_s: its end.
        started_from: version that it was fine-tuned from; None: it was fitted afresh.
        calibration_hash: of the simulator's engine when it was trained; None: there was none.
    """

    origin: str
    seed: int
    data_start_unix_s: float | None = None
    data_end_unix_s: float | None = None
    started_from: str | None = None
    calibration_hash: str | None = None

    @property
    def trained(self) -> bool:
        """Whether what the network expects means anything."""
        return self.origin != UNTRAINED


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the network makes of one window. Rows in the order of its classes.

    Attributes:
        weights: [C] in (0, 1]; they need not sum to 1, only ratios matter.
        rule_shares: [C] what the weights would be without the network.
        residuals: [C] the network's part, in log-odds.
        violation: [C] expected violation fraction in the next step.
        features: [C, F] of the window's last step.
        unfamiliarity: [C] how far the window is outside what the network learned from, in
            widths of a feature's range there; 0 when the bundle does not tell.
        feature_names: of the columns of ``features``.
    """

    weights: NDArray[np.float64]
    rule_shares: NDArray[np.float64]
    residuals: NDArray[np.float64]
    violation: NDArray[np.float64]
    features: NDArray[np.float32]
    unfamiliarity: NDArray[np.float64]
    feature_names: tuple[str, ...] = FEATURE_NAMES


@dataclass(frozen=True, slots=True, eq=False)
class Bundle:
    """A network, where it comes from, what it has seen, and the schema that it was made for.

    Bundles without ``ranges`` (untrained, or of an older release) take every window for known.

    How many threads torch may use is for the process to say (``torch.set_num_threads``); one
    is enough, and more get in the way of the engine on the same machine.
    """

    network: ResidualLstm
    provenance: Provenance
    schema_hash: str = field(default_factory=schema_hash)
    ranges: FeatureRanges | None = None

    @classmethod
    def untrained(cls, seed: int = 0) -> "Bundle":
        """A fresh network: its weights are exactly the rule's."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = ResidualLstm()
        return cls(network=network.eval(), provenance=Provenance(origin=UNTRAINED, seed=seed))

    def predict(self, window: Window, classes: Sequence[TaskClass]) -> Prediction:
        """Weights for the next step.

        Raises:
            ValueError: window and classes do not fit the schema or each other.
            CorruptBundle: the network's output is no number.
        """
        features = encode(window, classes)  # [C, T, F]
        with torch.inference_mode():
            output = self.network(torch.from_numpy(features)).numpy()  # [C, 3]
        if not np.isfinite(output).all():
            raise CorruptBundle("the network's output is not finite")
        shares = rule_shares(window, classes)  # [C]
        residuals = output[:, RESIDUAL].astype(np.float64)  # [C]
        return Prediction(
            weights=shifted_in_log_odds(shares, residuals),
            rule_shares=shares,
            residuals=residuals,
            violation=output[:, VIOLATION].astype(np.float64),
            features=features[:, -1],
            unfamiliarity=(
                np.zeros(len(classes)) if self.ranges is None else self.ranges.excess(features)
            ),
        )

    def save(self, folder: Path) -> None:
        """Write the bundle's two files into ``folder``, which is created."""
        folder.mkdir(parents=True, exist_ok=True)
        weights = save_tensors(self.network.state_dict())
        manifest = {
            "schema_hash": self.schema_hash,
            "weights_sha256": hashlib.sha256(weights).hexdigest(),
            "provenance": asdict(self.provenance),
            "feature_ranges": None if self.ranges is None else asdict(self.ranges),
        }
        (folder / WEIGHTS_FILE).write_bytes(weights)
        (folder / MANIFEST_FILE).write_text(json.dumps(manifest, indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path) -> "Bundle":
        """Read a bundle back. Runs no code out of the files.

        Raises:
            SchemaMismatch: it was made for another schema than this process's.
            CorruptBundle: a file is missing, changed, or holds no such network.
        """
        manifest = _read_manifest(folder / MANIFEST_FILE)
        expected = schema_hash()
        if manifest.schema_hash != expected:
            raise SchemaMismatch(found=manifest.schema_hash, expected=expected)
        network = _read_network(folder / WEIGHTS_FILE, sha256=manifest.weights_sha256)
        return cls(network=network.eval(), provenance=manifest.provenance, ranges=manifest.ranges)


def shifted_in_log_odds(
    shares: NDArray[np.float64], residuals: NDArray[np.float64]
) -> NDArray[np.float64]:
    """``sigmoid(logit(share) + residual)``, exact at residual 0 and defined at share 1: [C]."""
    shifted: NDArray[np.float64] = shares * np.exp(residuals) / (1.0 + shares * np.expm1(residuals))
    return shifted


@dataclass(frozen=True, slots=True)
class _Manifest:
    schema_hash: str
    weights_sha256: str
    provenance: Provenance
    ranges: FeatureRanges | None


def _read_manifest(path: Path) -> _Manifest:
    try:
        document = json.loads(path.read_bytes())
        ranges = document.get("feature_ranges")
        return _Manifest(
            schema_hash=str(document["schema_hash"]),
            weights_sha256=str(document["weights_sha256"]),
            provenance=Provenance(**document["provenance"]),
            ranges=None if ranges is None else FeatureRanges.from_document(ranges),
        )
    except OSError as error:
        raise CorruptBundle(f"cannot read {path.name}: {error.strerror}") from error
    except (AttributeError, ValueError, KeyError, TypeError) as error:
        raise CorruptBundle(f"{path.name} is no bundle manifest: {error!r}") from error


def _read_network(path: Path, *, sha256: str) -> ResidualLstm:
    try:
        weights = path.read_bytes()
    except OSError as error:
        raise CorruptBundle(f"cannot read {path.name}: {error.strerror}") from error
    found = hashlib.sha256(weights).hexdigest()
    if found != sha256:
        raise CorruptBundle(f"{path.name} has SHA-256 {found}, its manifest says {sha256}")
    network = ResidualLstm()
    try:
        network.load_state_dict(load_tensors(weights))
    except (SafetensorError, RuntimeError) as error:
        raise CorruptBundle(f"{path.name} does not fit the network: {error}") from error
    if not all(torch.isfinite(tensor).all() for tensor in network.state_dict().values()):
        raise CorruptBundle(f"{path.name} holds weights that are not finite")
    return network
