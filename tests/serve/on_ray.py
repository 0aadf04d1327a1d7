"""A Ray of several simulated nodes that listens at 127.0.0.1 only, for tests."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

TOKEN = secrets.token_hex(32)
"""Of this process: Ray keeps the first that it has seen."""
NODE = {"num_cpus": 2, "node_ip_address": "127.0.0.1", "object_store_memory": 80 << 20}


@contextmanager
def simulated(nodes: int, patch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Any]]:
    """Begin a Ray; yield its module, and its cluster, of whose nodes some can be removed."""
    patch.setenv("RAY_AUTH_MODE", "token")  # read when it is imported
    patch.setenv("RAY_AUTH_TOKEN", TOKEN)
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    ray = pytest.importorskip("ray", reason="needs the extra ray")
    from ray._private import services
    from ray.cluster_utils import Cluster

    # Ray replaces 127.0.0.1 by the machine's address, at which others could reach it.
    patch.setattr(services, "resolve_ip_for_localhost", lambda host: host)
    patch.setattr(services, "get_node_ip_address", lambda *_, **__: "127.0.0.1")
    cluster = Cluster(initialize_head=True, head_node_args=NODE | {"include_dashboard": False})
    try:
        for _ in range(nodes - 1):
            cluster.add_node(**NODE)
        ray.init(address=cluster.address, _node_ip_address="127.0.0.1", log_to_driver=False, logging_level="error")
        assert {one["NodeManagerAddress"] for one in ray.nodes()} == {"127.0.0.1"}
        assert not open_to_others(), open_to_others()
        yield ray, cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def open_to_others() -> list[str]:
    """Return the lines of ``ss`` about Ray's processes that listen at other addresses than 127.0.0.1."""
    said = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True, check=True).stdout.splitlines()
    ours = [line for line in said if any(name in line for name in ("ray", "gcs_server"))]
    return [line for line in ours if "127.0.0.1" not in line.split()[3]]
