"""Which table is in force: fencing on the way in, the TTL on the way out."""

from dataplane.errors import SnapshotError
from dataplane.weights import WeightTable


class TableInForce:
    """One writer, the stream; any number of readers, none of which ever waits.

    The table and its neutral form are swapped together in one assignment. Readers decide on
    the TTL by the time they bring, so expiry needs no thread that is alive.

    Attributes:
        applied: snapshots that came into force.
        refused: snapshots that did not.
    """

    def __init__(self) -> None:
        initial = WeightTable.initial()
        self._tables = (initial, initial)
        self.applied = 0
        self.refused = 0

    def at(self, now_s: float) -> WeightTable:
        """The table to use at this moment: the newest, or past its TTL its neutral form."""
        newest, neutral = self._tables
        return neutral if newest.expired(now_s) else newest

    def offer(self, table: WeightTable) -> None:
        """Bring a snapshot into force; the one that is in force already changes nothing.

        Raises:
            SnapshotError: it is older than the one in force.
        """
        newest, _ = self._tables
        if table.newer_than(newest):
            self._tables = (table, table.neutralised())
            self.applied += 1
        elif (table.epoch, table.version) != (newest.epoch, newest.version):
            raise SnapshotError(_fenced(table, newest))


def _fenced(table: WeightTable, newest: WeightTable) -> str:
    if table.epoch < newest.epoch:
        return f"epoch {table.epoch} is over: this engine follows epoch {newest.epoch}"
    return f"version {table.version} is older than version {newest.version}, which is in force"
