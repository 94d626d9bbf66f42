"""A calibration: the numbers of one kind of engine, and where they come from.

The hash identifies the numbers. It is stored with every model that was trained on them.
"""

import hashlib
import json
import math
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from training.errors import BadFile
from training.simulator.model import EngineModel

FORMAT = "trimtab calibration 1"

TERMS = (
    "base_s",
    "prefill_s_per_token",
    "decode_s_per_sequence",
    "kv_s_per_token",
    "chunk_context_s",
)
"""The coefficients of a step's time, in the order of ``step_fit``."""

LEAST_BASE_S = 1e-6
"""A step takes some time, even where a fit finds none."""

_SIZES = ("slots", "step_tokens", "chunk_tokens", "longest_tokens", "kv_blocks", "block_tokens")


@dataclass(frozen=True, slots=True)
class Calibration:
    """An engine's numbers.

    Attributes:
        engine: the numbers.
        origin: how they were found, for people.
        steps: how many measured steps they rest on; 0: on none.
        step_error_ratio: mean absolute relative error on these; None: unknown.
    """

    engine: EngineModel
    origin: str
    steps: int = 0
    step_error_ratio: float | None = None

    @property
    def hash(self) -> str:
        """SHA-256 of the engine's numbers: of their values, however a file writes them."""
        exact = {
            name: int(value) if name in _SIZES else float(value).hex()
            for name, value in asdict(self.engine).items()
        }
        return hashlib.sha256(json.dumps(exact, sort_keys=True).encode()).hexdigest()

    @property
    def coefficients(self) -> NDArray[np.float64]:
        """Of a step's time, in the order of ``TERMS``."""
        return np.array([getattr(self.engine, term) for term in TERMS])

    def with_coefficients(self, coefficients: NDArray[np.float64], origin: str) -> "Calibration":
        """The same engine at another speed."""
        return Calibration(at_speed(self.engine, coefficients), origin)

    def save(self, path: Path) -> None:
        """Write as JSON.

        Raises:
            OSError: the file can't be written.
        """
        content = {"format": FORMAT, "hash": self.hash, **asdict(self)}
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what ``save`` wrote.

        Raises:
            BadFile: it can't be read, or holds no calibration of this format.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise BadFile(path, f"it can't be read: {error}") from error
        try:
            calibration = cls(**_parsed(content))
        except (TypeError, ValueError) as error:
            raise BadFile(path, f"it is no calibration: {error}") from error
        if content.get("hash", calibration.hash) != calibration.hash:
            raise BadFile(
                path, "its numbers were changed since the hash was written; remove the hash"
            )
        return calibration


def at_speed(engine: EngineModel, coefficients: NDArray[np.float64]) -> EngineModel:
    """The engine with other coefficients of its step time, in the order of ``TERMS``."""
    terms = dict(zip(TERMS, coefficients.tolist(), strict=True))
    terms["base_s"] = max(terms["base_s"], LEAST_BASE_S)
    return replace(engine, **terms)


def _parsed(content: Any) -> dict[str, Any]:
    """The arguments of a calibration.

    Raises:
        ValueError: something is missing, or of another kind.
    """
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"its format is not {FORMAT!r}")
    engine, error_ratio = content.get("engine"), content.get("step_error_ratio")
    names = [field.name for field in fields(EngineModel)]
    if not isinstance(engine, dict) or engine.keys() != set(names):
        raise ValueError(f"its engine must have exactly {', '.join(names)}")
    for name in names:
        _require_number(engine[name], f"engine.{name}", whole=name in _SIZES)
    _require_number(content.get("steps"), "steps", whole=True)
    if error_ratio is not None:
        _require_number(error_ratio, "step_error_ratio", whole=False)
    return {
        "engine": EngineModel(**engine),
        "origin": str(content.get("origin")),
        "steps": content["steps"],
        "step_error_ratio": error_ratio,
    }


def _require_number(value: Any, name: str, *, whole: bool) -> None:
    number = type(value) is int or (type(value) is float and not whole)
    if not (number and math.isfinite(value) and value >= 0):
        kind = "whole number" if whole else "number"
        raise ValueError(f"{name} must be a {kind} from 0 on, got {value!r}")


REFERENCE_ENGINE = Calibration(
    EngineModel(
        base_s=6e-3,
        prefill_s_per_token=3.5e-4,
        decode_s_per_sequence=1.2e-3,
        kv_s_per_token=2e-7,
        slots=32,
        step_tokens=256,
        kv_blocks=4096,
        client_overhead_s=5e-3,
    ),
    origin="assumed: a small model on one CPU core, not measured",
)
"""The engine where none was measured. Slots and step are those of the demo's engine; all else
is assumed, of the order of a small model on one CPU core, and good for comparing policies,
not for sizing a fleet. ``python -m benchmarks.sim --calibrate FILE`` measures an engine."""
