"""Layers of a model on a remote host: a real SSH server, real workers, real tunnels, and their failures."""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import time

import httpx2
import psutil
import pytest

from engine.remotes import service
from engine.remotes.errors import RemoteFault
from engine.remotes.registry import RemoteRegistry
from engine.remotes.types import Remote
from tests.support.fakes.ssh_hosts import Relay, SshHost, Worker, free_port
from tests.support.servers import ROOT, RunningServer, wait_for
from tests.support.unhindered import Stopwatch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # processes also start on busy machines
PATIENCE_S = 120
TOLD_S = 2.0  # from the detection of a fault to the client's error


@pytest.fixture(scope="module")
def http(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    (home / "models").mkdir()
    shutil.copy(ROOT / "assets" / "models" / "spark-f16.gguf", home / "models" / "other.gguf")
    server = RunningServer(home)
    with httpx2.Client(
        base_url=server.url, headers={"authorization": f"Bearer {server.token}"}, timeout=PATIENCE_S
    ) as client:
        client.server = server
        yield client
    server.stop()


@pytest.fixture(scope="module")
def here(http):
    """The text of the local run."""
    return ask(http).json()["choices"][0]["message"]["content"]


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    made = SshHost(tmp_path_factory.mktemp("ssh"))
    yield made
    made.stop()


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    made = Worker(tmp_path_factory.mktemp("worker"), memory="57M")  # too little for the whole model
    yield made
    made.stop()


@pytest.fixture
def link(host):
    made = Relay(("127.0.0.1", host.port))
    yield made
    made.stop()


@pytest.fixture
def desk(http, host, worker, link):
    """The worker as the remote host `desk`, with the toy model pinned to it."""
    assert add(http, host, link.port, worker.port).json()["state"] == "ok"
    assert pin(http, "desk").status_code == 200
    yield
    pin(http, None)
    http.post("/tessera/v1/models/spark/unload")
    http.delete("/tessera/v1/remotes/desk")


def add(http, host, ssh_port, worker_port, **more):
    body = {"host": "127.0.0.1", "user": "me", "port": ssh_port, "worker_port": worker_port,
            "identity": str(host.identity), "host_key": host.fingerprint, **more}  # fmt: skip
    return http.put("/tessera/v1/remotes/desk", json=body)


def pin(http, device):
    http.post("/tessera/v1/models/spark/unload")
    return http.post("/tessera/v1/models/spark/pin", json={"device": device})


def asked(text="Tell me about rain", **more):
    messages = [{"role": "user", "content": text}]
    return {"model": "spark", "messages": messages, "max_tokens": 12, "temperature": 0, **more}


def ask(http, text="Tell me about rain", **more):
    return http.post("/v1/chat/completions", json=asked(text, **more))


def state(http):
    (row,) = http.get("/tessera/v1/remotes").json()["remotes"]
    return row


def loaded(http):
    return {m["id"]: m for m in http.get("/tessera/v1/loaded").json()["models"]}


def endless(http):
    """A response that continues until it is stopped."""
    return http.stream(
        "POST", "/v1/chat/completions", json=asked(max_tokens=4000, stream=True, ignore_eos=True, loop_guard=False)
    )


def broken_answer(http, harm):
    """Start a response, cause a fault during it, and return the error at the end of the stream."""
    with endless(http) as answer:
        told = None
        for count, line in enumerate(answer.iter_lines()):
            if count == 6:
                harmed = Stopwatch(http.server.process.pid)
                harm()
            if '"error"' in line:
                told, at = json.loads(line.removeprefix("data: "))["error"], time.time()
    assert abs(at - state(http)["at"]) <= TOLD_S + harmed.hindered_s()
    return told


def is_well_again(http, here, host, worker):
    """All connections are closed, another model answers, and the next request gets a new placement."""
    other = {"model": "other", "prompt": "One", "max_tokens": 2}
    assert http.post("/v1/completions", json=other).status_code == 200
    assert ask(http).json()["choices"][0]["message"]["content"] == here
    assert loaded(http)["spark"]["backend"] == "cpu"
    wait_for(lambda: not worker.sessions(), PATIENCE_S, "the end of the worker's session")
    wait_for(lambda: not host.live(), PATIENCE_S, "the end of the SSH connection")
    server = psutil.Process(http.server.process.pid)
    wait_for(
        lambda: not any(map(is_tunnel, server.children(recursive=True))),
        PATIENCE_S,
        "the end of the tunnel's process",
    )


def is_tunnel(process):
    """Return whether it is a tunnel process; zombies count, because their command is unknown."""
    try:
        return "tunnel_child" in " ".join(process.cmdline())
    except psutil.ZombieProcess:
        return True
    except psutil.NoSuchProcess:
        return False


def test_a_model_over_two_computers_says_what_it_says_here(http, here, host, worker, desk):
    placed = http.get("/tessera/v1/models/spark/placement").json()["placement"]
    words = " ".join(placed["reasons"])
    assert "you pinned it there" in words
    assert "layers on desk" in words
    assert "kB per token sent" in words
    assert 0 < placed["n_gpu_layers"] <= placed["n_layers"]  # some layers are local, some remote
    answer = ask(http)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == here
    row = state(http)
    assert (row["state"], row["models"]) == ("ok", ["spark"])
    assert row["rtt_ms"] > 0
    ledger = http.get("/tessera/v1/ledger").json()
    assert any(pool["id"] == "remote:desk/CPU" for pool in ledger["pools"])
    # The worker and its sessions listen on 127.0.0.1 only.
    (session,) = worker.sessions()
    for process in (psutil.Process(worker.process.pid), session):
        listening = [c.laddr for c in process.net_connections("inet") if c.status == "LISTEN"]
        assert {address.ip for address in listening} == {"127.0.0.1"}
    assert "desk holds layers of spark" in http.delete("/tessera/v1/remotes/desk").text
    assert http.post("/tessera/v1/models/spark/unload").status_code == 200
    wait_for(lambda: not worker.sessions(), PATIENCE_S, "the end of the worker's session")
    wait_for(lambda: not host.live(), PATIENCE_S, "the end of the SSH connection")


def test_the_link_is_cut_in_the_middle_of_an_answer(http, here, host, worker, desk, link):
    told = broken_answer(http, link.cut)
    assert told["code"] == "remote_failed"
    assert told["message"].startswith("desk: ")
    assert state(http)["state"] in {"lost", "unreachable"}
    is_well_again(http, here, host, worker)
    placed = http.get("/tessera/v1/models/spark/placement").json()["placement"]
    assert "desk cannot be used now" in " ".join(placed["reasons"])


def test_a_link_that_falls_silent(http, here, host, worker, desk, link):
    def stall():
        link.stalled = True

    told = broken_answer(http, stall)
    assert "it has not responded" in told["message"]
    link.cut()
    is_well_again(http, here, host, worker)


def test_the_process_over_there_dies(http, here, host, worker, desk):
    told = broken_answer(http, lambda: [session.kill() for session in worker.sessions()])
    assert told["code"] == "remote_failed"
    assert "stopped" in told["message"]
    # The worker is probed again and found, and the model returns to it.
    wait_for(lambda: state(http)["state"] == "ok", PATIENCE_S, "the worker's return")
    assert ask(http).json()["choices"][0]["message"]["content"] == here


def test_the_worker_is_killed(http, here, host, link, tmp_path):
    mortal = Worker(tmp_path, memory="57M")
    try:
        assert add(http, host, link.port, mortal.port).json()["state"] == "ok"
        assert pin(http, "desk").status_code == 200
        told = broken_answer(http, mortal.process.kill)
        assert told["code"] == "remote_failed"
        mortal.process.wait()
        is_well_again(http, here, host, mortal)
        checked = http.post("/tessera/v1/remotes/desk/check").json()
        assert checked["state"] == "no_worker"
        assert "no worker answers" in checked["reason"]
    finally:
        mortal.stop()
        pin(http, None)
        http.delete("/tessera/v1/remotes/desk")


def test_a_computer_that_cannot_be_reached_is_not_kept_and_is_no_fault_of_the_server(http, host):
    answer = add(http, host, free_port(), free_port())
    assert (answer.status_code, answer.json()["error"]["code"]) == (424, "remote_failed")
    assert "cannot be reached by SSH" in answer.json()["error"]["message"]
    assert http.get("/tessera/v1/remotes").json()["remotes"] == []


def test_a_link_that_becomes_slow_is_told_and_the_answer_goes_on(http, desk, link):
    slow_s = max(1.0, 5 * state(http)["rtt_ms"] / 1000)
    seen = []
    with endless(http) as answer:
        for count, line in enumerate(answer.iter_lines()):
            if count == 4:
                link.delay_s = slow_s
            if count > 4 and not seen and state(http)["state"] == "slow":
                seen.append(state(http)["reason"])
            if seen:
                break
            assert '"error"' not in line
    assert "has become slow" in seen[0]


@pytest.mark.parametrize(("added_again", "again_s"), [(True, 5.0), (False, 0.2)])
def test_a_lost_worker_that_was_found_is_not_checked_again(
    host, worker, link, tmp_path, monkeypatch, added_again, again_s
):
    monkeypatch.setattr(service, "LOOK_AGAIN_S", (again_s,))
    desk = Remote(
        name="desk", host="127.0.0.1", user="me", host_key="", port=link.port, worker_port=worker.port,
        identity=str(host.identity),
    )  # fmt: skip

    async def found_again():
        remotes = service.Remotes(RemoteRegistry(tmp_path / "remotes.json"))
        seen = await remotes.add(desk, host.fingerprint)
        remotes.saw(RemoteFault("desk", "lost", "it is gone"))
        await asyncio.sleep(0)  # the recheck begins
        if added_again:
            seen = await remotes.add(desk, host.fingerprint)
        else:
            remotes.registry.saw("desk", seen)  # as a command in a terminal records it
        link.cut()  # a further check would not reach it
        if rechecks := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(rechecks, timeout=15)
        return seen, remotes.registry.seen("desk")

    seen, later = asyncio.run(found_again())
    assert seen.state == "ok"
    assert later == seen


def test_another_version_over_there(http, here, host, link, tmp_path):
    code = (
        "import app.worker.facts as facts; facts.kernel_name = lambda: '9.9.9 fedcba9'\n"
        "from app.cli.worker import command; command()"
    )
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-c", code, "--port", str(port)], cwd=ROOT, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, env={**os.environ, "TESSERA_HOME": str(tmp_path)},
    )  # fmt: skip
    try:
        wait_for(lambda: psutil.Process(process.pid).net_connections("inet"), 90, "the worker's port")
        row = add(http, host, link.port, port).json()
        assert row["state"] == "other_kernel"
        assert "9.9.9 fedcba9" in row["reason"]
        assert http.get("/tessera/v1/remotes").json()["kernel"] in row["reason"]
        assert pin(http, "desk").status_code == 400  # none of its devices is listed
        assert ask(http).json()["choices"][0]["message"]["content"] == here
    finally:
        process.kill()
        process.wait()
        http.delete("/tessera/v1/remotes/desk")


def test_a_key_that_is_not_taken(http, host, worker, link, tmp_path):
    stranger = SshHost(tmp_path)
    try:
        row = add(http, host, link.port, worker.port, identity=str(stranger.identity)).json()
        assert row["state"] == "refused"
        assert "accepts none of your SSH keys for the user me" in row["reason"]
        row = add(http, host, link.port, worker.port, identity=str(tmp_path / "missing")).json()
        assert row["state"] == "refused"
        assert "missing cannot be used (No such file or directory)" in row["reason"]
        wait_for(lambda: not host.live(), PATIENCE_S, "the end of the SSH connection")
    finally:
        stranger.stop()
        http.delete("/tessera/v1/remotes/desk")


def test_a_host_key_must_be_known_and_stay_the_same(http, here, host, worker, desk, link):
    shown = host.fingerprint
    unknown = http.put(
        "/tessera/v1/remotes/other",
        json={"host": "127.0.0.1", "user": "me", "port": link.port, "identity": str(host.identity)},
    )
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (409, "unknown_host_key")
    assert shown in unknown.text
    host.with_another_key()
    link.target = ("127.0.0.1", host.port)
    refused = add(http, host, link.port, worker.port, host_key=shown)
    assert refused.status_code == 400
    assert host.fingerprint in refused.text
    checked = http.post("/tessera/v1/remotes/desk/check").json()
    assert checked["state"] == "changed_key"
    assert "another host key than the one that was accepted" in checked["reason"]
    assert ask(http).json()["choices"][0]["message"]["content"] == here
    assert loaded(http)["spark"]["backend"] == "cpu"
    assert not worker.sessions()


def test_names_that_are_none(http):
    for body in ({"host": "-oProxyCommand=x", "user": "me"}, {"host": "desk", "user": "-l x"}, {"host": "desk", "user": "me", "port": 0}):  # fmt: skip  # noqa: E501
        assert http.put("/tessera/v1/remotes/desk", json=body).status_code == 400
    assert http.put("/tessera/v1/remotes/De sk", json={"host": "desk", "user": "me"}).status_code == 400
    assert http.post("/tessera/v1/remotes/nobody/check").status_code == 400
    assert http.get("/tessera/v1/remotes").json()["remotes"] == []


def test_what_is_no_worker_is_told(http, host, link):
    with socket.create_server(("127.0.0.1", 0)) as other:
        row = add(http, host, link.port, free_port()).json()
        assert (row["state"], row["devices"]) == ("no_worker", [])
        del other
    web = int(http.base_url.port)
    row = add(http, host, link.port, web).json()
    assert row["state"] == "no_worker"
    assert "not a Tessera worker" in row["reason"]
    http.delete("/tessera/v1/remotes/desk")
