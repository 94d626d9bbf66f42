"""Compilation with numba.

The functions get all arrays from their caller and make none, so they go without reference
counts: with them a step would cost several times as much.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

import numba

_Function = TypeVar("_Function", bound=Callable[..., object])


def compiled(function: _Function) -> _Function:
    """Compile when first called; other threads run meanwhile."""
    return cast("_Function", numba.njit(nogil=True, _nrt=False)(function))


def cached(function: _Function) -> _Function:
    """Likewise, and keep the result on disk. What a closure refers to is part of its key."""
    return cast("_Function", numba.njit(nogil=True, _nrt=False, cache=True)(function))


def source_revision() -> int:
    """A hash of this package's source text."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return int.from_bytes(digest.digest()[:7])
