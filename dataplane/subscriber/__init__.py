"""The engine's side of the weights stream; protobuf messages go no further than here."""

from dataplane.subscriber.in_force import TableInForce
from dataplane.subscriber.messages import Identity
from dataplane.subscriber.stream import Subscriber

__all__ = ["Identity", "Subscriber", "TableInForce"]
