"""The database file behind an SQLite store of MLflow's."""

import sqlite3
from contextlib import closing
from pathlib import Path

SCHEME = "sqlite:///"


def database_of(tracking_uri: str) -> Path | None:
    """The database file of an SQLite store, absolute; None for other stores."""
    if not tracking_uri.startswith(SCHEME):
        return None
    return Path(tracking_uri.removeprefix(SCHEME)).absolute()


def require_database(database: Path) -> None:
    """Fail at once on a file that is no database: MLflow would retry for two minutes.

    Raises:
        sqlite3.Error: it cannot be opened, or is something else.
    """
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA schema_version").fetchone()
