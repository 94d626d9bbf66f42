"""AdminService: what an operator sees and changes at run time."""

from collections.abc import Callable
from typing import Any

import grpc

from controlplane.errors import StoreError
from controlplane.publisher import Publisher
from controlplane.status import EngineStatus, Status
from controlplane.wire import discipline_from_wire, status_to_wire
from protos.trimtab.v1 import admin_pb2
from protos.trimtab.v1.admin_pb2_grpc import AdminServiceServicer

Context = grpc.aio.ServicerContext[Any, Any]


class AdminDesk(AdminServiceServicer):
    """The servicer.

    Args:
        engines: who is connected now.
        missed_windows: in a row, up to now.
        retrain_reason: why a retrain is asked for; None: it is not.
        canary: which model is on trial, and how it stands; None: none is.
    """

    def __init__(
        self,
        *,
        publisher: Publisher,
        engines: Callable[[], tuple[EngineStatus, ...]],
        missed_windows: Callable[[], int],
        retrain_reason: Callable[[], str | None] = lambda: None,
        canary: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._publisher = publisher
        self._engines = engines
        self._missed_windows = missed_windows
        self._retrain_reason = retrain_reason
        self._canary = canary

    async def GetStatus(  # noqa: N802 - the name is the protocol's
        self,
        request: admin_pb2.GetStatusRequest,  # noqa: ARG002 - it has no fields
        context: Context,
    ) -> admin_pb2.Status:
        """Everything at a glance."""
        latest = self._publisher.latest
        if latest is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "nothing is published yet")
        return status_to_wire(
            Status(
                epoch=latest.epoch,
                version=latest.version,
                mode=latest.plan.mode,
                mode_reason=latest.plan.mode_reason,
                discipline=self._publisher.discipline,
                model_version=latest.plan.model_version,
                missed_windows=self._missed_windows(),
                engines=self._engines(),
                retrain_reason=self._retrain_reason(),
                canary=self._canary(),
            )
        )

    async def SetDiscipline(  # noqa: N802 - the name is the protocol's
        self, request: admin_pb2.SetDisciplineRequest, context: Context
    ) -> admin_pb2.SetDisciplineResponse:
        """Publish with another discipline, now and from now on."""
        discipline = discipline_from_wire(request.discipline)
        if discipline is None:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "discipline must be APQ or FCFS")
        for name, text in (("actor", request.actor), ("reason", request.reason)):
            if not text.strip():
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{name} must not be empty")
        try:
            snapshot = await self._publisher.set_discipline(
                discipline, actor=request.actor, reason=request.reason
            )
        except StoreError as error:
            await context.abort(
                grpc.StatusCode.UNAVAILABLE, f"the choice can't be kept, nothing changed: {error}"
            )
        return admin_pb2.SetDisciplineResponse(version=snapshot.version)
