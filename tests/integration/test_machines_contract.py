"""Every field of the routes for other computers has a visible effect; unknown fields are refused."""

import httpx2
import pytest

from engine.api.remotes import RemoteRequest
from engine.api.upstreams import UpstreamKeyRequest, UpstreamRequest, UpstreamRule
from tests.support.contract_examples import MACHINES
from tests.support.fakes.fake_upstream import FakeUpstream
from tests.support.fakes.ssh_hosts import SshHost
from tests.support.servers import RunningServer

pytestmark = pytest.mark.timeout(300)
BODIES = {
    "/tessera/v1/upstreams/desk": UpstreamRequest,
    "/tessera/v1/upstreams/desk/key": UpstreamKeyRequest,
    "/tessera/v1/upstream-rules": UpstreamRule,
    "/tessera/v1/remotes/desk": RemoteRequest,
}
PASSING = ("at", "latency_ms", "rtt_ms", "up_bytes_s", "down_bytes_s", "reason")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A server, an upstream that requires a key, and an SSH host without a worker."""
    server = RunningServer(
        tmp_path_factory.mktemp("home"), env={"PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring"}
    )
    fake, host = FakeUpstream("vllm", key="sesame"), SshHost(tmp_path_factory.mktemp("ssh"))
    places = {
        "URL": fake.url, "SSH_PORT": host.port, "IDENTITY": str(host.identity), "HOST_KEY": host.fingerprint,
    }  # fmt: skip
    with httpx2.Client(
        base_url=server.url, headers={"authorization": f"Bearer {server.token}"}, timeout=120
    ) as http:
        yield http, places
    host.stop()
    fake.stop()
    server.stop()


def filled(body, places):
    return {k: places.get(v, v) if isinstance(v, str) else v for k, v in body.items()}


def told(http, path, body, places):
    """The result of a body on a fresh state, without volatile fields."""
    for name in ("/tessera/v1/upstreams/desk", "/tessera/v1/remotes/desk"):
        http.delete(name)
    if path != "/tessera/v1/upstreams/desk":
        http.put("/tessera/v1/upstreams/desk", json={"url": places["URL"]})
    answer = http.put(path, json=body)
    rows = answer.json().get("upstreams", [answer.json()])
    plain = [{k: v for k, v in row.items() if k not in PASSING} for row in rows]
    return answer.status_code, plain, answer.json().get("rules")


def test_the_examples_have_every_field():
    for path, body in MACHINES.items():
        assert set(body) == set(BODIES[path].__struct_fields__), path


@pytest.mark.parametrize("path", MACHINES)
def test_every_field_has_an_effect(world, path):
    http, places = world
    body = filled(MACHINES[path], places)
    whole = told(http, path, body, places)
    assert whole[0] == 200, whole
    for field in body:
        assert told(http, path, {k: v for k, v in body.items() if k != field}, places) != whole, field


@pytest.mark.parametrize("path", MACHINES)
def test_a_field_that_nobody_knows_is_refused(world, path):
    http, places = world
    assert told(http, path, {**filled(MACHINES[path], places), "zz_unknown": 1}, places)[0] == 400
