"""The database of a study, which any number of processes write to."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from capsella.errors import CapsellaError

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


@contextlib.contextmanager
def answering(folder: Path) -> Iterator[None]:
    """Where the database does not answer for a block, the error says so.

    Raises:
        CapsellaError: it is locked for too long, or cannot be reached.
    """
    import optuna

    try:
        yield
    except optuna.exceptions.StorageInternalError as error:
        raise CapsellaError(
            f"{folder}: the study's database does not answer; call the command again, and it goes on"
        ) from error


def give_first_sign(storage: Any, trials: Sequence[Any]) -> None:
    """A sign of life in place of workers that gave none, as one that died just after it took a trial.

    Without any, a worker never counts as dead, and the others would wait for it without end.
    """
    from optuna.exceptions import StorageInternalError
    from sqlalchemy import text
    from sqlalchemy.exc import SQLAlchemyError

    running = {trial._trial_id for trial in trials if trial.state.name == "RUNNING"}
    with contextlib.suppress(StorageInternalError, SQLAlchemyError):  # busy: the next look will do
        if running:
            with storage.engine.connect() as connection:
                known = set(connection.execute(text("SELECT trial_id FROM trial_heartbeats")).scalars())
            for number in running - known:
                storage.record_heartbeat(number)


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
