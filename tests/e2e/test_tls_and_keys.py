"""TLS with certificate files, and keys created in the terminal, with real processes."""

import json
import ssl
import subprocess
import sys

import httpx2
import psutil
import pytest

from engine.core.keys import KeyStore
from tests.support.servers import ROOT, RunningServer, free_port, runs, wait_for

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate for 127.0.0.1 from the system's openssl."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
               "-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", "/CN=127.0.0.1",
               "-addext", "subjectAltName=IP:127.0.0.1"]  # fmt: skip
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    return cert, key


def tessera(home, *arguments, **kwargs):
    import os

    return subprocess.run(
        [sys.executable, "-m", "app", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=100,
        env={**os.environ, "TESSERA_HOME": str(home)}, **kwargs,
    )  # fmt: skip


def test_tls_is_spoken_and_plain_http_is_not(tmp_path, certificate):
    import os

    cert, key = certificate
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "app", "serve", "--port", str(port), "--tls-cert", str(cert), "--tls-key", str(key)],
        cwd=ROOT, env={**os.environ, "TESSERA_HOME": str(tmp_path)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        context = ssl.create_default_context(cafile=str(cert))

        def answers():
            try:
                return httpx2.get(f"https://127.0.0.1:{port}/health", verify=context).status_code == 200
            except httpx2.TransportError:
                return False

        wait_for(answers, 90, "the TLS server")
        with pytest.raises(httpx2.TransportError):
            httpx2.get(f"http://127.0.0.1:{port}/health")
        assert httpx2.get(f"https://127.0.0.1:{port}/v1/models", verify=context).json()["data"]
    finally:
        process.terminate()
        out, _ = process.communicate(timeout=60)
    assert out == b""  # in particular, no token


@pytest.mark.parametrize("which", ["no key", "missing", "swapped"])
def test_a_bad_certificate_is_named_before_serving(tmp_path, certificate, which):
    cert, key = certificate
    arguments = {
        "no key": ["--tls-cert", str(cert)],
        "missing": ["--tls-cert", str(tmp_path / "none.pem"), "--tls-key", str(key)],
        "swapped": ["--tls-cert", str(key), "--tls-key", str(cert)],
    }[which]
    done = tessera(tmp_path, "serve", "--port", "0", *arguments)
    assert done.returncode not in {0, 1}
    assert "Traceback" not in done.stderr
    assert "tls" in done.stderr or "certificate" in done.stderr


def test_a_key_from_the_command_line_closes_and_opens_a_running_server(in_process, monkeypatch, tmp_path):
    monkeypatch.setenv("TESSERA_HOME", str(tmp_path))
    server = RunningServer(tmp_path)
    try:
        assert httpx2.get(f"{server.url}/v1/models").status_code == 200
        key = in_process("keys", "add", "laptop").stdout.strip()
        assert key.startswith("tsr_")
        assert httpx2.get(f"{server.url}/v1/models").status_code == 401
        assert httpx2.get(f"{server.url}/v1/models", headers={"x-api-key": key}).status_code == 200
        assert "laptop\tchat" in in_process("keys", "list").stdout
        assert in_process("keys", "remove", "laptop").returncode == 0
        assert httpx2.get(f"{server.url}/v1/models").status_code == 200
        assert in_process("keys", "remove", "laptop").returncode != 0
    finally:
        server.stop()


def test_canaries_appear_in_no_log_file_environment_or_command_line(tmp_path):
    key, prompt = "sk-canary-env-key", "canary prompt text"
    secrets = {"TESSERA_API_KEY": key, "HF_TOKEN": "hf_canary_token", "MY_SECRET": "canary-secret"}
    server = RunningServer(tmp_path, env=secrets)
    try:
        body = {"model": "spark", "messages": [{"role": "user", "content": prompt}], "max_tokens": 3}
        headers = {"authorization": f"Bearer {key}"}
        assert httpx2.post(f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=60).is_success
        assert httpx2.post(f"{server.url}/v1/chat/completions", json=body).status_code == 401
        httpx2.post(f"{server.url}/v1/chat/completions", content=prompt.encode(), headers=headers)

        def betrays(child):
            try:
                told = json.dumps([child.environ(), child.cmdline()])
            except (psutil.NoSuchProcess, psutil.AccessDenied):  # a short-lived child process has ended
                assert not runs(child.pid)
                return False
            return any(canary in told for canary in (*secrets.values(), prompt))

        for child in psutil.Process(server.process.pid).children(recursive=True):
            # Until its program starts, a new child process has the server's environment.
            wait_for(lambda child=child: not betrays(child), 30, "a child without secrets")
        commands = " ".join(psutil.Process(server.process.pid).cmdline())
        assert key not in commands
    finally:
        server.stop()
    found = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert server.log_path in found
    for path in found:
        content = path.read_bytes()
        for canary in (*secrets.values(), prompt):
            assert canary.encode() not in content, path


ROUTES = [
    ("GET", "/v1/models"), ("GET", "/v1/files"), ("POST", "/v1/chat/completions"), ("POST", "/api/chat"),
    ("POST", "/v1/messages"), ("GET", "/props"), ("GET", "/tessera/v1/keys"),
]  # fmt: skip


def test_a_public_server_lets_nobody_in_when_its_last_key_is_gone(in_process, monkeypatch, tmp_path):
    """Tests all ways to remove the key. Only the socket of 127.1 shows that this address is loopback."""
    monkeypatch.setenv("TESSERA_HOME", str(tmp_path))
    file = tmp_path / "config" / "api-keys.json"
    store = KeyStore(file)
    key = store.add("phone", ("chat",))
    server = RunningServer(tmp_path, "--host", "127.1")
    try:
        with httpx2.Client(base_url=f"http://127.0.0.1:{httpx2.URL(server.url).port}") as http:
            owner = {"authorization": f"Bearer {server.token}"}

            def statuses():
                return {http.request(method, path).status_code for method, path in ROUTES}

            def by_terminal():
                assert in_process("keys", "remove", "phone").returncode == 0

            def by_route():
                assert http.delete("/tessera/v1/keys/phone", headers=owner).status_code == 204

            for remove in (by_terminal, by_route, file.unlink, lambda: file.write_text("[]")):
                assert http.get("/v1/models", headers={"x-api-key": key}).status_code == 200
                remove()
                assert statuses() == {401}
                assert http.get("/v1/models", headers={"x-api-key": key}).status_code == 401
                assert http.get("/v1/models", headers=owner).status_code == 200
                assert http.get("/tessera/v1/keys", headers=owner).json() == {
                    "keys": [],
                    "public": True,
                    "required": True,
                }
                key = store.add("phone", ("chat",))
    finally:
        server.stop()
    assert "accepts no requests" in in_process("keys", "remove", "phone").stderr
    done = tessera(tmp_path, "serve", "--port", "0", "--host", "127.1", "--api-key", "")
    assert done.returncode not in {0, 1}
    assert "API key is required" in done.stderr
