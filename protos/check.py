"""Compare the committed stubs with what the protos give: ``python -m protos.check``."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from protos.generate import ROOT, generate


def stale_stubs() -> list[str]:
    """Return the committed stubs that differ from a fresh generation, or are missing."""
    with TemporaryDirectory() as fresh_dir:
        fresh = Path(fresh_dir)
        generate(fresh)
        names = [stub.relative_to(fresh) for stub in sorted(fresh.glob("trimtab/v1/*_pb2*"))]
        return [str(name) for name in names if not _same(fresh / name, ROOT / name)]


def _same(fresh: Path, committed: Path) -> bool:
    return committed.exists() and fresh.read_bytes() == committed.read_bytes()


if __name__ == "__main__":
    stale = stale_stubs()
    if stale:
        sys.exit(f"stubs differ from the protos: {', '.join(stale)}; run `make protos`")
