"""A blocking client of the control plane, for commands and scripts.

with WeightsClient("127.0.0.1:9440") as client:
    print(client.get().version)
"""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import grpc

from controlplane.errors import CallRefused, ControlPlaneAway, NoSuchSnapshot
from controlplane.snapshot import Decision, Discipline, Snapshot
from controlplane.status import Status
from controlplane.wire import (
    decision_from_wire,
    discipline_to_wire,
    snapshot_from_wire,
    status_from_wire,
)
from protos.trimtab.v1 import admin_pb2, weights_pb2
from protos.trimtab.v1.admin_pb2_grpc import AdminServiceStub
from protos.trimtab.v1.weights_pb2_grpc import WeightsServiceStub

DEFAULT_ADDRESS = "127.0.0.1:9440"


class WeightsClient:
    """One connection. Every call may raise ClientError.

    Args:
        address: host:port of the control plane's gRPC server.
        timeout_s: longest wait for one answer; a watch has none.
    """

    def __init__(self, address: str = DEFAULT_ADDRESS, *, timeout_s: float = 5.0) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._channel = grpc.insecure_channel(address)
        self._weights = WeightsServiceStub(self._channel)
        self._admin = AdminServiceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def get(self) -> Snapshot:
        """The newest snapshot."""
        with self._mapped():
            request = weights_pb2.GetWeightsRequest()
            return snapshot_from_wire(self._weights.GetWeights(request, timeout=self._timeout_s))

    def watch(self) -> Generator[Snapshot]:
        """The newest snapshot, then each newer one, until the control plane goes away."""
        with self._mapped():
            call = self._weights.WatchWeights(weights_pb2.WatchWeightsRequest())
            try:
                for message in call:
                    yield snapshot_from_wire(message)
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.CANCELLED:  # `close` cancels
                    raise
            finally:
                call.cancel()

    def explain(self, version: int) -> Decision:
        """How a version came about.

        Raises:
            NoSuchSnapshot: it was never published, or is past retention.
        """
        with self._mapped():
            request = weights_pb2.ExplainDecisionRequest(version=version)
            return decision_from_wire(
                self._weights.ExplainDecision(request, timeout=self._timeout_s)
            )

    def status(self) -> Status:
        """The control plane and its engines."""
        with self._mapped():
            request = admin_pb2.GetStatusRequest()
            return status_from_wire(self._admin.GetStatus(request, timeout=self._timeout_s))

    def set_discipline(self, discipline: Discipline, *, actor: str, reason: str) -> int:
        """Change how all engines order requests; the version that says so first."""
        with self._mapped():
            request = admin_pb2.SetDisciplineRequest(
                discipline=discipline_to_wire(discipline), actor=actor, reason=reason
            )
            return self._admin.SetDiscipline(request, timeout=self._timeout_s).version

    def close(self) -> None:
        """Hang up; a watch in another thread ends."""
        self._channel.close()

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        """Raise the errors of gRPC as this package's."""
        try:
            yield
        except grpc.RpcError as error:
            code, details = error.code(), error.details()
            if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise ControlPlaneAway(f"{self.address}: {details}") from error
            if code is grpc.StatusCode.NOT_FOUND:
                raise NoSuchSnapshot(str(details)) from error
            raise CallRefused(f"{self.address}: {code.name}: {details}") from error
        except KeyError as error:
            raise CallRefused(f"{self.address} speaks a newer protocol: {error}") from error
        except ValueError as error:
            raise CallRefused(f"{self.address} breaks the protocol: {error}") from error
