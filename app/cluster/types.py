"""Types of the cluster: deployments, requests, and this computer's membership."""

import os
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from engine.core.json_store import JsonStore
from engine.core.paths import Paths

NAMESPACE: Final = "tessera"
RAY_PORT: Final = 6379
DOOR_PORT: Final = 7380


class ClusterFile(msgspec.Struct, frozen=True, kw_only=True):
    """Address and token of the head. `door` and `pid` belong to `cluster up` and are set only on the head."""

    address: str = ""
    token: str = ""
    door: str = ""
    pid: int = 0

    def environment(self) -> dict[str, str]:
        """Environment variables for Ray: require the token from every client, send no usage statistics."""
        return {
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_SERVE_LOG_TO_STDERR": "0",
            "RAY_raylet_start_wait_time_s": "120",  # a busy machine does not start a node within Ray's 30 s
            "RAY_worker_niceness": "0",  # otherwise all other processes have priority over a replica's model
        }


def cluster_file(paths: Paths) -> JsonStore[ClusterFile]:
    """State file readable by this user only: its token lets anyone run programs on every machine of the cluster."""
    return JsonStore(paths.state / "cluster.json", ClusterFile, ClusterFile, private=True)


class Deployed(msgspec.Struct, frozen=True, kw_only=True):
    """One model in the cluster. `num_bytes` is the size of its file, which must be the same on all nodes.

    `memory_bytes` is the memory of one replica: the ledger's prediction plus the server process.
    """

    model: str
    num_bytes: int
    memory_bytes: int
    parallel: int = 4
    n_ctx: int | None = None
    least: int = 1
    most: int = 1
    affinity: bool = True


@dataclass(frozen=True, slots=True)
class ClusterRequest:
    """One request. Ray's prefix-affinity router divides by the length of `messages`, so it is never empty."""

    path: str
    body: bytes
    messages: Any
