"""Kernel packs with real libraries: installed by the command, loaded by probes and runners, or refused."""

import functools
import hashlib
import http.server
import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from app import settings
from app.kernel_pack_index import check_signature, fetch
from devices.backends.libraries import library_folder
from devices.errors import PackRefused
from devices.kernel_packs.abi import headers_hash, installed_abi
from devices.kernel_packs.folder import installed_libraries, packs_folder
from devices.kernel_packs.install import install, verify
from devices.kernel_packs.manifest import Manifest, PackFile, this_platform
from devices.kernel_packs.store import PackStore
from tests.support.fakes.minisign_signer import Signer

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not (library_folder() or Path()).joinpath("libggml-rpc.so").exists(),
    reason="llama.cpp was built without plugins",
)


@pytest.fixture(scope="module")
def abi():
    return installed_abi(library_folder())


def rpc_pack(folder: Path, abi, **changes) -> Path:
    """A pack of the RPC backend: a real plugin that is part of every installation."""
    folder.mkdir(parents=True)
    shutil.copy(library_folder() / "libggml-rpc.so", folder)
    data = (folder / "libggml-rpc.so").read_bytes()
    file = PackFile(name="libggml-rpc.so", num_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    facts = {
        "format": 1,
        "name": "rpc-test",
        "version": abi.ggml_version,
        "backend": "rpc",
        "platform": this_platform(),
        "ggml_version": abi.ggml_version,
        "headers": headers_hash(library_folder().parent / "include"),
        "files": (file,),
    }
    (folder / "manifest.json").write_bytes(msgspec.json.encode(Manifest(**{**facts, **changes})))
    return folder


def tessera(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "app", "kernels", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_installed_by_the_command_used_and_taken_back(tmp_path, abi):
    source = rpc_pack(tmp_path / "pack", abi)
    done = tessera("install", str(source), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["in_use"]
    inside = installed_libraries(library_folder())["rpc"][0]
    assert inside.is_relative_to(packs_folder())
    listed = json.loads(tessera("list", "--json").stdout)
    assert [(p["name"], p["in_use"]) for p in listed] == [("rpc-test", True)]
    assert "sound" in tessera("verify").stdout
    assert "none: the shipped libraries" in tessera("rollback", "rpc-test").stdout
    assert installed_libraries(library_folder())["rpc"][0].parent == library_folder()
    assert tessera("remove", "rpc-test").returncode == 0
    assert "No kernel pack" in tessera("list").stdout


def test_a_runner_loads_the_packs_library(tmp_path, abi):
    install(PackStore(packs_folder()), rpc_pack(tmp_path / "pack", abi))
    code = (
        "from engine.runner.llama.native.llama_api import start_backends\n"
        "start_backends()\n"
        "print([l.split()[-1] for l in open('/proc/self/maps') if 'libggml-rpc' in l or 'libggml-cpu' in l])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert str(packs_folder()) in done.stdout
    assert "libggml-cpu" in done.stdout
    assert str(library_folder() / "libggml-rpc.so") not in done.stdout


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ggml_version": "0.0.1"}, "ggml 0.0.1"),
        ({"headers": "0" * 64}, "other headers"),
        ({"platform": "windows-x86_64"}, "windows-x86_64"),
        ({"backend": "vulkan"}, "rpc's"),
    ],
)
def test_foreign_packs_are_refused_and_leave_nothing(tmp_path, abi, changes, words):
    store = PackStore(packs_folder())
    with pytest.raises(PackRefused, match=words):
        install(store, rpc_pack(tmp_path / "pack", abi, **changes))
    assert store.packs() == ()


def test_a_library_that_does_not_load_keeps_the_one_in_use(tmp_path, abi):
    store = PackStore(packs_folder())
    good, _ = install(store, rpc_pack(tmp_path / "good", abi))
    broken = rpc_pack(tmp_path / "broken", abi)
    data = (broken / "libggml-rpc.so").read_bytes()[:5000]
    (broken / "libggml-rpc.so").write_bytes(data)
    found = json.loads((broken / "manifest.json").read_text())
    found["files"][0] |= {"num_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (broken / "manifest.json").write_text(json.dumps(found))
    with pytest.raises(PackRefused, match="does not load here"):
        install(store, broken)
    assert [p.folder for p in store.active()] == [good.folder]
    done = tessera("install", str(broken))
    assert done.returncode == 3
    assert "was refused" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_pack_changed_after_its_installation_is_found(tmp_path, abi):
    pack, _ = install(PackStore(packs_folder()), rpc_pack(tmp_path / "pack", abi))
    with (pack.folder / "libggml-rpc.so").open("ab") as file:
        file.write(b"x")
    with pytest.raises(PackRefused, match="bytes of the manifest"):
        verify(pack)


def test_signatures():
    signer, other = Signer(), Signer()
    signature = signer.sign(b"index")
    assert check_signature(b"index", signature, [signer.public]) == "timestamp:1"
    for data, text, keys in (
        (b"indeX", signature, [signer.public]),
        (b"index", signature, [other.public]),
        (b"index", signature, []),
        (b"index", signature.replace("timestamp:1", "timestamp:2"), [signer.public]),
        (b"index", "", [signer.public]),
        (b"index", signature, ["AAAA"]),
        (b"index", "a\nb\nc\nd", [signer.public]),
    ):
        with pytest.raises(PackRefused):
            check_signature(data, text, keys)


@pytest.fixture
def served(tmp_path):
    """A folder that a real HTTP server serves, and its URL."""
    folder = tmp_path / "served"
    folder.mkdir()
    handler = functools.partial(_Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_arguments):
        """Suppress the log."""


def test_packs_from_an_address(tmp_path, served, abi):
    folder, address = served
    archive = shutil.make_archive(str(folder / "rpc-test"), "xztar", rpc_pack(tmp_path / "pack", abi))
    data = Path(archive).read_bytes()
    entry = {
        "name": "rpc-test",
        "platform": this_platform(),
        "ggml_version": abi.ggml_version,
        "file": Path(archive).name,
        "num_bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    signer = Signer()

    def publish(**changes):
        index = json.dumps({"format": 1, "packs": [{**entry, **changes}]}).encode()
        (folder / "index.json").write_bytes(index)
        (folder / "index.json.minisig").write_text(signer.sign(index))

    now = settings.load()
    with pytest.raises(PackRefused, match=r"kernels\.address"):
        fetch("rpc-test", now)
    now = now.changed("kernels.address", address).changed("kernels.keys", signer.public)
    with pytest.raises(PackRefused, match="could not be downloaded"):
        fetch("rpc-test", now)
    publish()
    with pytest.raises(PackRefused, match="offline"):
        fetch("rpc-test", now.changed("network.offline", True))
    pack, _ = install(PackStore(packs_folder()), fetch("rpc-test", now))
    assert pack.manifest.name == "rpc-test"
    publish(ggml_version="9.9.9")
    with pytest.raises(PackRefused, match=r"9\.9\.9"):
        fetch("rpc-test", now)
    publish(sha256="0" * 64)
    with pytest.raises(PackRefused, match="promised"):
        fetch("rpc-test", now)
    publish(file="../rpc-test.tar.xz")
    with pytest.raises(PackRefused, match="names a file"):
        fetch("rpc-test", now)
    (folder / "index.json.minisig").write_text(Signer().sign(b"other"))
    with pytest.raises(PackRefused):
        fetch("rpc-test", now)
