"""A control plane's gRPC server and what stands behind it."""

from dataclasses import dataclass

from controlplane.admin import AdminDesk
from controlplane.broadcast import Broadcast
from controlplane.metrics import Metrics
from controlplane.publisher import Publisher
from controlplane.push import PushService


@dataclass(frozen=True)
class Door:
    address: str
    push: PushService
    desk: AdminDesk
    publisher: Publisher
    broadcast: Broadcast
    metrics: Metrics
