"""Which versions of vLLM the plugin runs in.

vLLM promises nothing about its scheduler's insides, so a version that was not tested is
refused at start, before it can do harm in the middle of traffic.
"""

import logging

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from dataplane.errors import ConfigError

logger = logging.getLogger("vllm.trimtab")

SUPPORTED_VLLM = ">=0.31,<0.33"
# A build from vLLM's own tree calls itself a pre-release, such as 0.32.1.dev3+cpu. It is
# taken; one that leads up to 0.33 is not, as by PEP 440 "<0.33" leaves those out as well.
_RANGE = SpecifierSet(SUPPORTED_VLLM, prereleases=True)


def require_supported(found: str, *, allow_unsupported: bool) -> None:
    """Let vLLM start only in a version that the plugin is tested with.

    Args:
        found: ``vllm.__version__``.
        allow_unsupported: what an operator decided: warn and go on.

    Raises:
        ConfigError: the version is outside the range, or cannot be told.
    """
    if _supports(found):
        return
    complaint = (
        f"vLLM {found!r} is not supported: Trimtab is tested with vllm{SUPPORTED_VLLM}; install"
        " one of these, or set TRIMTAB_ALLOW_UNSUPPORTED_VLLM=true to run it untested"
    )
    if not allow_unsupported:
        raise ConfigError(complaint)
    logger.warning("Trimtab: %s (it is set)", complaint)


def _supports(found: str) -> bool:
    try:
        return Version(found) in _RANGE
    except InvalidVersion:
        # A build without version information calls itself "dev".
        return False
