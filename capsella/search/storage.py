"""The database of a study, which any number of processes write to."""

from pathlib import Path
from typing import Any

HEARTBEAT, GRACE = 5, 30
"""Seconds between a worker's signs of life, and without one until its trial is taken up by another."""
WAIT_FOR_LOCK = 60
"""Seconds that a process waits while others write to the file."""


def storage_url(storage: str | None, folder: Path) -> str:
    """Of the study's database: the one that is named, or study.db in its folder."""
    return storage or f"sqlite:///{folder / 'study.db'}"


def open_storage(url: str, grace: int) -> Any:
    """Optuna's storage in a database; a file waits for its lock, and has one writer at a time.

    grace: seconds without a sign of life after which a worker counts as dead.
    """
    import optuna

    is_file, heartbeat = url.startswith("sqlite"), max(1, min(HEARTBEAT, grace // 3))
    connect = {"connect_args": {"timeout": WAIT_FOR_LOCK}} if is_file else {}
    storage = optuna.storages.RDBStorage(url, connect, heartbeat_interval=heartbeat, grace_period=grace)
    if is_file:
        _one_at_a_time(storage.engine)
    return storage


def _one_at_a_time(engine: Any) -> None:
    """Let SQLite lock the file at the begin of a transaction.

    Python begins one at the first write. Optuna's `SELECT … FOR UPDATE`, which SQLite lacks, then guards nothing: two
    workers that ask at once are given the same waiting trial.
    """
    from sqlalchemy import event

    @event.listens_for(engine, "connect")
    def by_hand(connection: Any, _: object) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def lock(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    engine.dispose()  # connections that were made before
