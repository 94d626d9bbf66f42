"""What the gates said of a version, as it is kept with the version. Imports no MLflow."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class Verdict:
    """One gate's word.

    Attributes:
        name: of the gate.
        reason: why, for people; also when it passed.
        figures: what it was decided on, by name.
    """

    name: str
    passed: bool
    reason: str
    figures: Mapping[str, float] = field(default_factory=dict)


def verdicts_to_json(verdicts: Iterable[Verdict]) -> str:
    """The verdicts as text; figures that are no numbers become null."""
    rows = [
        {
            **asdict(verdict),
            "figures": {
                name: float(value) if math.isfinite(value) else None
                for name, value in verdict.figures.items()
            },
        }
        for verdict in verdicts
    ]
    return json.dumps(rows)


def verdicts_from_json(text: str) -> tuple[Verdict, ...]:
    """The same, read back.

    Raises:
        ValueError: the text holds no verdicts.
    """
    try:
        return tuple(
            Verdict(
                str(row["name"]),
                row["passed"] is True,  # whatever else stands there did not pass
                str(row["reason"]),
                {
                    str(name): math.nan if value is None else float(value)
                    for name, value in row["figures"].items()
                },
            )
            for row in json.loads(text)
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"these are no verdicts: {error!r}") from error
