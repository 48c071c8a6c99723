"""Create, list and remove deployments through Serve's controller, from any process on a node."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from typing import Any, Final

import msgspec
import ray
from ray import serve
from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router import PrefixCacheAffinityRouter
from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_tree import PrefixTreeActor
from ray.serve._private.constants import SERVE_NAMESPACE
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from app.client import Client
from app.cluster.types import NAMESPACE, ClusterFile, ClusterRequest, Deployed
from app.server_process import ServerProcess
from engine.upstreams.http import HttpClient

# Ray Serve's prefix-affinity router. Its public name below ray.serve.llm imports packages that only vLLM needs. The
# router finds the actor that stores prefixes by this name. Source: ray 2.60, prefix_aware_router.py.
ROUTER: Final = f"{PrefixCacheAffinityRouter.__module__}:{PrefixCacheAffinityRouter.__name__}"
TREE: Final = "LlmPrefixTreeActor"
DEPLOYMENT: Final = "model"
# Seconds that queues must be long before a replica is added, and short before one is removed.
UP_S: Final = 3.0
DOWN_S: Final = 30.0
HEALTH_S: Final = 2.0
# Time for running responses to finish when a replica is replaced or removed.
END_S: Final = 120.0


def connect(cluster: ClusterFile) -> None:
    """Join the cluster as a driver, with `cluster.environment()` set. Raises: ConnectionError."""
    ray.init(address=cluster.address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    serve.start(proxy_location="Disabled")


def deploy(deployment: Deployed, down_s: float = DOWN_S) -> None:
    """Deploy a model, or replace its deployment replica by replica. Blocks until one replica serves."""
    router = RequestRouterConfig()
    if deployment.affinity:
        _remember_on_head(deployment.model)
        # A node with this many more requests than another loses its preference for cached prefixes.
        router = RequestRouterConfig(
            request_router_class=ROUTER,
            request_router_kwargs={"imbalanced_threshold": deployment.parallel, "do_eviction": True},
        )
    scaling = AutoscalingConfig(
        min_replicas=deployment.least,
        max_replicas=deployment.most,
        target_ongoing_requests=deployment.parallel,
        upscale_delay_s=UP_S,
        downscale_delay_s=down_s,
        metrics_interval_s=1.0,
        look_back_period_s=3.0,
    )
    replica = serve.deployment(Replica).options(
        name=DEPLOYMENT,
        autoscaling_config=scaling,
        request_router_config=router,
        max_ongoing_requests=2 * deployment.parallel,
        max_replicas_per_node=1,
        ray_actor_options={"num_cpus": 1, "memory": deployment.memory_bytes},
        health_check_period_s=HEALTH_S,
        health_check_timeout_s=5 * HEALTH_S,
        graceful_shutdown_timeout_s=END_S,
    )
    serve.run(replica.bind(deployment), name=deployment.model, route_prefix=None)


def _remember_on_head(model: str) -> None:
    """Place the prefix actor on the head: on another node, its loss would make every request fail."""
    head = next(node["NodeID"] for node in ray.nodes() if "node:__internal_head__" in node["Resources"])
    PrefixTreeActor.options(
        name=TREE,
        namespace=f"{SERVE_NAMESPACE}::{model}::{DEPLOYMENT}",
        get_if_exists=True,
        lifetime="detached",
        num_cpus=0,
        scheduling_strategy=NodeAffinitySchedulingStrategy(head, soft=False),
    ).remote()


def deployed() -> dict[str, dict[str, Any]]:
    """All deployed models: state, reason, and number of replicas per state."""
    deployments = {}
    for name, application in serve.status().applications.items():
        (of,) = application.deployments.values() or (None,)
        deployments[name] = {
            "state": str(application.status.value),
            "reason": application.message or (of.message if of else ""),
            "replicas": {str(getattr(s, "value", s)): n for s, n in of.replica_states.items()} if of else {},
        }
    return deployments


def nodes() -> list[dict[str, Any]]:
    """All live nodes: address, memory for models, and how much of it is free."""
    free = ray._private.state.available_resources_per_node()  # noqa: SLF001 - Ray's own status command reads it too
    return [
        {
            "address": node["NodeManagerAddress"],
            "total_bytes": int(node["Resources"].get("memory", 0)),
            "free_bytes": int(free.get(node["NodeID"], {}).get("memory", 0)),
        }
        for node in ray.nodes()
        if node["Alive"]
    ]


def remove(model: str) -> None:
    """Remove a deployment; its running responses may finish first."""
    serve.delete(model)


def shut_down() -> None:
    """Remove all deployments and stop Serve."""
    serve.shutdown()


# One model on one node: a Ray Serve actor and a private Tessera server, which has the runner.


class ModelNotHere(RuntimeError):
    """The node's library does not contain the deployed model."""


class Replica:
    """Created by Ray where memory is free; the server ends with this process, even if it crashes."""

    def __init__(self, deployment: Deployed) -> None:
        self._deployment = deployment
        arguments = ["--parallel", str(deployment.parallel), "--ttl", "0"]
        arguments += ["--ctx", str(deployment.n_ctx)] if deployment.n_ctx else []
        self._server = ServerProcess(*arguments)
        self._client = self._server.connect(Client)
        self._check_file()
        self._client.load(deployment.model)
        self._http = HttpClient(deployment.model, self._client.url)
        self._key = {"authorization": f"Bearer {self._client.token}"}

    def _check_file(self) -> None:
        here = {m.id: m.size_bytes for m in self._client.library()}
        if here.get(self._deployment.model) != self._deployment.num_bytes:
            present = "another file" if self._deployment.model in here else "no model"
            raise ModelNotHere(f"{socket.gethostname()} has {present} under the name {self._deployment.model}")

    async def check_health(self) -> None:
        """Raise if the server does not respond; Ray calls this every few seconds and then replaces the replica."""
        async with self._http.request("GET", "/health", headers=self._key) as answer:
            await answer.read()

    async def about(self) -> dict[str, Any]:
        """The model's row in its server's model list."""
        async with self._http.request("GET", "/v1/models", headers=self._key) as answer:
            rows = msgspec.json.decode(await answer.read())["data"]
        entry: dict[str, Any] = next(row for row in rows if row["id"] == self._deployment.model)
        return entry

    async def answer(self, request: ClusterRequest) -> AsyncGenerator[tuple[int, str] | bytes, None]:
        """Yield status and content type, then the body as it arrives; closing early closes the connection."""
        async with self._http.request("POST", request.path, request.body, self._key) as answer:
            yield answer.status, answer.headers.get("content-type", "application/json")
            async for chunk in answer.chunks():
                yield chunk

    async def __del__(self) -> None:
        """Stop the server; Ray calls this when the replica is removed."""
        await asyncio.to_thread(self._server.stop)
