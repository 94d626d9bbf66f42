"""Regenerate the committed stubs: ``python -m protos.generate [OUT]``.

The protos name each other by the path a client's own protoc would use
(``trimtab/v1/weights.proto``). Inside this distribution the stubs live under
``protos.``, so the generated imports get that prefix.
"""

import re
import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent
PROTOS = ("trimtab/v1/weights.proto", "trimtab/v1/admin.proto")
_OWN_IMPORT = re.compile(r"^(from|import) trimtab\.v1\b", re.MULTILINE)
_OWN_NAME = re.compile(r"(?<![\w./])trimtab\.v1\.(\w+_pb2)\b")


def generate(out: Path) -> None:
    """Write the stubs below ``out``; it must exist.

    Raises:
        RuntimeError: protoc refused the protos; its own message is on stderr.
    """
    includes = [f"-I{ROOT}", f"-I{files('grpc_tools') / '_proto'}"]
    outputs = [f"--{kind}_out={out}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    plugins = [
        f"--plugin=protoc-gen-{kind}={Path(sys.executable).parent / f'protoc-gen-{kind}'}"
        for kind in ("mypy", "mypy_grpc")
    ]
    if protoc.main(["protoc", *includes, *plugins, *outputs, *PROTOS]) != 0:
        raise RuntimeError("protoc failed")
    for stub in sorted(out.glob("trimtab/v1/*_pb2*.py*")):
        text = _OWN_IMPORT.sub(r"\1 protos.trimtab.v1", stub.read_text())
        if stub.suffix == ".pyi":
            text = _OWN_NAME.sub(r"protos.trimtab.v1.\1", text)
        stub.write_text(text)


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
