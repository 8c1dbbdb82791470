"""A Ray cluster of two nodes on this machine, for tests."""

import fcntl
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

MEMORY = 80 * 2**20  # of shared memory, of each node; Ray takes no less than 75 MiB


@contextmanager
def two_nodes(cores: int = 1) -> Iterator[tuple[Any, list[Any]]]:
    """A head without cores and two nodes, which `ray` then means; yields all, and the two."""
    pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv(
            "GRPC_ENABLE_FORK_SUPPORT", "0"
        )  # its handlers at times hang the server that Ray forks for a client
        from ray.cluster_utils import Cluster

        soon = {"health_check_period_ms": 1000, "health_check_failure_threshold": 3}  # a dead node is known
        head = {"num_cpus": 0, "object_store_memory": MEMORY, "_system_config": soon}
        head["ray_client_server_port"] = free_port()
        made = Cluster(initialize_head=True, head_node_args=head)
        try:
            nodes = [made.add_node(num_cpus=cores, object_store_memory=MEMORY) for _ in range(2)]
            patch.setenv("RAY_ADDRESS", made.address)
            yield made, nodes
        finally:
            made.shutdown()


def free_port() -> int:
    """One that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def from_outside(made: Any) -> Iterator[str]:
    """The address by which a process that is no part of the cluster reaches it; one test at a time.

    Ray takes the first port from 23000 on that is free when it looks: two clusters that look at once take the same.
    """
    with open(Path(tempfile.gettempdir()) / "capsella-tests-ray-client.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield f"ray://127.0.0.1:{made.head_node._ray_params.ray_client_server_port}"
