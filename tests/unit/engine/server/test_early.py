"""A server's imports before its first response, and the routes that are created after it."""

import asyncio
import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from starlette.responses import PlainTextResponse

from engine.core.paths import user_paths
from engine.placement.placer import Placer
from engine.placement.resources import open_resources
from engine.server.auth import Access
from engine.server.build_server import LazyApp, create_app
from engine.server.models import ServedModels
from engine.server.state import ServerState
from tests.support.fakes.free_pool import FreePool

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[4]
# Each takes 0.1 s or more to import, including its own imports.
HEAVY = ("fastapi", "numpy", "httpx2", "huggingface_hub", "onnx", "gguf", "jinja2", "llguidance")


# They are not needed before the first token on this system, or never.
LATER = ("quantize.job", "devices.probes.apple", "devices.probes.gpu_windows")


@pytest.mark.parametrize(
    ("module", "heavy", "most"),
    [
        ("engine.server.build_server", (*HEAVY, *LATER, "prometheus_client"), 305),
        (
            "engine.server.model_side",
            (*HEAVY, *LATER, "pydantic", "starlette", "uvicorn", "engine.chat.chat_pipeline"),
            195,
        ),
        (
            "engine.runner.llama.service",
            ("llguidance", "devices.types", "packaging", "concurrent.futures", *LATER),
            130,
        ),
        ("engine.server.run", (*HEAVY, *LATER, "pydantic", "starlette", "uvicorn"), 72),
        ("app.cli.main", (*HEAVY, *LATER, "asyncio", "msgspec"), 40),
    ],
)
def test_nothing_heavy_is_imported_before_it_is_needed(module, heavy, most):
    """`most` is the number of Tessera's own modules, each of which delays the first token by some 0.3 ms.

    `tessera --help` imports `app.cli.main`. Before a load come `engine.server.run` and then `model_side`, before a
    request `build_server`; a runner imports `engine.runner.llama.service` before it takes a model.
    """
    script = f"import json, sys, {module}; print(json.dumps(list(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert sorted(set(heavy) & set(found)) == []
    own = [name for name in found if name.partition(".")[0] in ("app", "engine", "quantize", "devices")]
    assert len(own) <= most, "import what the first token does not need where it is used"


def test_late_routes_are_made_once_however_many_ask():
    made = []

    def build():
        made.append(1)
        return PlainTextResponse("late")

    async def main():
        late = LazyApp(build)
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(late), base_url="http://late") as client:
            answers = await asyncio.gather(*(client.get("/") for _ in range(5)))
        return [a.text for a in answers]

    assert asyncio.run(main()) == ["late"] * 5
    assert made == [1]


def test_they_wait_for_a_first_answer(monkeypatch):
    monkeypatch.setattr("engine.server.build_server.AFTER_S", 0.01)
    monkeypatch.setattr("engine.server.build_server.IDLE_LOOK_S", 0.01)
    made, looks = [], iter([True, True, True, False])

    def busy():
        assert not made
        return next(looks)

    asyncio.run(LazyApp(lambda: made.append(1)).ready_when_idle(busy))
    assert made == [1]
    assert next(looks, None) is None


def test_a_moment_without_descriptors_does_not_leave_them_out(monkeypatch):
    monkeypatch.setattr("engine.server.build_server.AFTER_S", 0.01)
    monkeypatch.setattr("engine.server.build_server.AGAIN_S", 0.01)
    tries = []

    def build():
        tries.append(1)
        if len(tries) == 1:
            raise OSError(errno.EMFILE, "Too many open files")

    asyncio.run(LazyApp(build).ready_when_idle(lambda: False))
    assert len(tries) == 2


def client_of_all_routes():
    """A client of a server without models, in this process."""
    models = ServedModels(lambda: None)
    placer = Placer(open_resources(user_paths()))
    state = ServerState(models=models, pool=FreePool(models), access=Access("secret"), placer=placer)
    transport = httpx2.ASGITransport(create_app(state), raise_app_exceptions=False)
    return httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1")


def test_a_path_answers_alike_early_and_late():
    """A method that an early route lacks is handled by the late routes, with all methods of the path."""

    async def main():
        async with client_of_all_routes() as client:
            for path in ("/health", "/v1/models", "/v1/chat/completions"):
                answer = await client.request("DELETE", path)
                assert answer.status_code == 405
                assert answer.json()["error"]["code"] == "http_error"
                assert answer.headers["allow"] == ("POST" if "chat" in path else "GET")
            assert (await client.head("/")).status_code == 200
            assert (await client.get("/v1/models/")).json() == (await client.get("/v1/models")).json()
            nowhere = (await client.get("/nowhere")).json()["error"]
            assert (nowhere["code"], nowhere["message"]) == ("not_found", "GET /nowhere: Not Found")
            assert (await client.get("/openapi.json")).json()["paths"]["/v1/chat/completions"]["post"][
                "requestBody"
            ]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("method", "path", "hint"),
    [
        ("POST", "/v1/v1/chat/completions", ". There is /v1/chat/completions: leave /v1 out of the base address."),
        ("POST", "/v1/v1/messages", ". There is /v1/messages: leave /v1 out of the base address."),
        ("POST", "/v1/api/chat", ". There is /api/chat: leave /v1 out of the base address."),
        ("GET", "/api/v1/models", ". There is /v1/models: leave /api out of the base address."),
        (
            "GET",
            "/v1/",
            ". This is a base address for programs. GET /v1/models lists the models, /docs all routes.",
        ),
        ("GET", "/api", ". This is a base address for programs. GET /api/tags lists the models, /docs all routes."),
        ("POST", "/v1/v1/nothing", ""),
    ],
)
def test_a_wrong_base_address_is_named(method, path, hint):
    """Programs append /v1 or do not; the user who entered the address sees only the error."""

    async def main():
        async with client_of_all_routes() as client:
            answer = await client.request(method, path, json={} if method == "POST" else None)
            assert answer.status_code == 404
            assert answer.json()["error"]["message"] == f"{method} {path}: Not Found{hint}"

    asyncio.run(main())
