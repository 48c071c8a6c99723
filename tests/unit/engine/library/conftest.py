import struct
from pathlib import Path

import pytest

from engine.core.paths import user_paths
from engine.library.catalogue import Catalogue
from engine.library.hub.client import HubClient
from tests.support.fakes.downloads import SPARK
from tests.support.fakes.fake_hub import FakeFile, FakeHub


def _text(value):
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def gguf_bytes(architecture="llama", *, strings=None, numbers=None, tensors=(("t", (8,)),), split=None):
    """A tiny valid GGUF file: `strings` and `numbers` are metadata, tensors F32 of zeros."""
    pairs = [("general.architecture", 8, _text(architecture))]
    pairs += [(k, 8, _text(v)) for k, v in (strings or {}).items()]
    pairs += [(k, 4, struct.pack("<I", v)) for k, v in (numbers or {}).items()]
    if split:
        pairs += [("split.no", 2, struct.pack("<H", split[0])), ("split.count", 2, struct.pack("<H", split[1]))]
    raw = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs))
    raw += b"".join(_text(k) + struct.pack("<I", t) + v for k, t, v in pairs)
    offset = 0
    for name, shape in tensors:
        raw += _text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        raw += struct.pack("<IQ", 0, offset)
        size = 4
        for side in shape:
            size *= side
        offset += -(-size // 32) * 32
    return raw + b"\0" * (-len(raw) % 32) + b"\0" * offset


@pytest.fixture
def gguf():
    return gguf_bytes


@pytest.fixture
def paths(tmp_path, monkeypatch):
    monkeypatch.setenv("TESSERA_HOME", str(tmp_path / "home"))
    found = user_paths()
    found.models.mkdir(parents=True)
    return found


@pytest.fixture
def catalogue(paths):
    opened = Catalogue(paths)
    yield opened
    opened.close()


@pytest.fixture
def put(paths):
    def _put(name, raw) -> Path:
        path = paths.models / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)
        return path

    return _put


@pytest.fixture
def hub(monkeypatch):
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_TOKEN", "")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with FakeHub() as running:
        yield running


@pytest.fixture
def client(hub):
    return HubClient(hub.endpoint)


@pytest.fixture
def spark(hub):
    return hub.add(
        "org/Spark-GGUF", {"spark-F16.gguf": SPARK.read_bytes(), "README.md": FakeFile(b"hi", lfs=False)}
    )
