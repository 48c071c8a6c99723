"""What is deployed, what is asked of it, and what this computer knows of the cluster it belongs to."""

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
    """Where the head is and its token. `door` and `pid` are those of `cluster up`, on the head only."""

    address: str = ""
    token: str = ""
    door: str = ""
    pid: int = 0

    def environment(self) -> dict[str, str]:
        """What Ray reads: its own token is asked of everybody who connects, and it reports to nobody."""
        return {
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_SERVE_LOG_TO_STDERR": "0",
            "RAY_raylet_start_wait_time_s": "120",  # a crowded machine does not start a node within Ray's 30 s
            "RAY_worker_niceness": "0",  # else a replica's model runs behind everything else of the machine
        }


def cluster_file(paths: Paths) -> JsonStore[ClusterFile]:
    """Readable by this user only: who has the token may run programs on every machine of the cluster."""
    return JsonStore(paths.state / "cluster.json", ClusterFile, ClusterFile, private=True)


class Deployed(msgspec.Struct, frozen=True, kw_only=True):
    """One model in the cluster. `num_bytes` is its file's size, which every node's must have.

    `memory_bytes` is what one replica takes: the ledger's prediction and the server beside the runner.
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
class Asked:
    """One request. Ray's prefix-affinity router reads `messages`, and divides by its length: never empty."""

    path: str
    body: bytes
    messages: Any
