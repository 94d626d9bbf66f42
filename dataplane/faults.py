"""Where a fault of the plugin ends: the engine goes on as stock vLLM would."""

import logging
from types import TracebackType

logger = logging.getLogger("vllm.trimtab")


class FaultBarrier:
    """``with barrier:`` swallows, counts and logs whatever the plugin's own code raises.

    Only code of the plugin stands inside the barrier, never a call into vLLM: faults of the
    engine stay the engine's. Each kind of fault is logged once, as a fault on the scheduling
    path would repeat hundreds of times a second.
    """

    def __init__(self) -> None:
        self.faults = 0
        self._logged: set[tuple[type[BaseException], int]] = set()

    def __enter__(self) -> None:
        """Nothing to set up."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Swallow exceptions; let KeyboardInterrupt and SystemExit pass."""
        if kind is None or not issubclass(kind, Exception):
            return False
        self.faults += 1
        where = (kind, trace.tb_lineno if trace else 0)
        if where not in self._logged:
            self._logged.add(where)
            logger.error("Trimtab fault, going on as stock vLLM: %r", fault, exc_info=fault)
        return True
