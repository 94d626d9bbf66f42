"""The demo's processes: engine, Prometheus, control plane."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.demo.scenario import CLASSES
from benchmarks.stack.controlplane import ControlPlane
from benchmarks.stack.cores import core_for_engine
from benchmarks.stack.engine import EngineSize, VllmEngine
from benchmarks.stack.process import free_port
from benchmarks.stack.prometheus import PrometheusServer


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything that runs, and where it answers."""

    engine: VllmEngine
    prometheus: PrometheusServer
    control_plane: ControlPlane

    def wait_ready(self) -> None:
        """Wait until all of them serve.

        Raises:
            ChildFailed: one of them ended or took too long.
        """
        self.prometheus.wait_ready()
        self.control_plane.wait_ready()
        self.engine.wait_ready()


@contextmanager
def running_parts(
    folder: Path,
    mlruns: Path,
    *,
    size: EngineSize | None = None,
    tick_s: float = 5.0,
    ttl_s: float = 30.0,
) -> Iterator[Parts]:
    """Start all parts, and end every one of them on the way out.

    Raises:
        MissingProgram: Prometheus is not installed.
    """
    port = free_port()
    with ExitStack() as stack:
        core = stack.enter_context(core_for_engine())
        engine = VllmEngine(
            folder / "engine", control_plane=f"127.0.0.1:{port}", size=size, core=core
        )
        stack.enter_context(engine.child)
        prometheus = PrometheusServer(folder / "prometheus", [engine.address])
        stack.enter_context(prometheus.child)
        control_plane = ControlPlane(
            folder / "controlplane",
            prometheus_url=prometheus.url,
            classes=CLASSES,
            mlruns=mlruns,
            port=port,
            tick_s=tick_s,
            ttl_s=ttl_s,
        )
        stack.callback(control_plane.stop)
        yield Parts(engine, prometheus, control_plane)
