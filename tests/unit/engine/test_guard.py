import asyncio

import pytest

from engine.server.auth import Access, Unauthorized, presented_keys
from engine.server.middleware import Guard
from engine.server.origin_check import AllowedOrigins


async def _ok(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})


def status(headers, path="/v1/models", **options):
    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    raw = [(k.encode(), v.encode()) for k, v in headers.items()]
    scope = {"type": "http", "path": path, "headers": raw, "method": "GET", "scheme": "http"}
    asyncio.run(Guard(_ok, AllowedOrigins(**options))(scope, receive, send))
    return sent[0]["status"], dict(sent[0]["headers"])


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:7373", "[::1]:7373", "LOCALHOST:1"])
def test_loopback_names_pass(host):
    assert status({"host": host})[0] == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "[::1", "localhost@evil.example:1"])
def test_other_names_do_not(host):
    assert status({"host": host})[0] == 403


def test_a_listed_host_and_origin_pass():
    code, headers = status(
        {"host": "box.lan", "origin": "https://app.lan"}, hosts=("box.lan",), origins=("https://app.lan",)
    )
    assert code == 200
    assert headers[b"access-control-allow-origin"] == b"https://app.lan"


def test_no_cors_header_without_an_origin():
    assert b"access-control-allow-origin" not in status({"host": "localhost"})[1]


@pytest.mark.parametrize("length", ["-1", "x", "99999999999999"])
def test_impossible_lengths_are_refused(length):
    assert status({"host": "localhost", "content-length": length})[0] == 413


@pytest.mark.parametrize(
    "headers", [{"authorization": "Bearer k"}, {"authorization": "bearer k"}, {"x-api-key": "k"}, {"api-key": "k"}]
)
def test_every_header_form_carries_a_key(headers):
    assert presented_keys(headers) == ["k"]
    Access("token", ["k"]).check("/v1/models", headers)


@pytest.mark.parametrize(
    "headers", [{}, {"authorization": "Basic k"}, {"authorization": "Bearer"}, {"x-api-key": "j"}]
)
def test_without_the_key_nothing_passes(headers):
    with pytest.raises(Unauthorized):
        Access("token", ["k"]).check("/v1/models", headers)


def test_management_needs_the_token_even_without_keys():
    access = Access("token")
    access.check("/v1/models", {})
    with pytest.raises(Unauthorized):
        access.check("/tessera/v1/jobs", {"authorization": "Bearer k"})
    access.check("/tessera/v1/jobs", {"authorization": "Bearer token"})
