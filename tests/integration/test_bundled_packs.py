"""Bundled packs: real archives with a real library, installed if a device can use them, or refused."""

import hashlib
import os
import shutil
import tarfile
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from devices.backends.libraries import library_folder
from devices.detect import inventory
from devices.first_look import gpu_lines
from devices.host_real import RealHost
from devices.kernel_packs import bundled
from devices.kernel_packs.abi import headers_hash, installed_abi
from devices.kernel_packs.folder import active_libraries, packs_folder
from devices.kernel_packs.manifest import Manifest, PackFile, this_platform
from devices.kernel_packs.store import PackStore

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        not (library_folder() or Path()).joinpath("libggml-cpu.so").exists(), reason="built without plugins"
    ),
]
NAME = f"cpu-{this_platform()}"


@pytest.fixture(scope="module")
def machine():
    return inventory(RealHost())


@pytest.fixture(scope="module")
def abi():
    return installed_abi(library_folder())


@pytest.fixture
def store():
    return PackStore(packs_folder())


def archive(assets: Path, abi, *, forged: bool = False, **changes) -> Path:
    """A pack of the CPU backend, whose device every computer has."""
    work = assets / "work"
    work.mkdir(parents=True, exist_ok=True)
    library = Path(shutil.copy(library_folder() / "libggml-cpu.so", work))
    data = library.read_bytes()
    if forged:
        library.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    facts = {
        "format": 1,
        "name": NAME,
        "version": abi.ggml_version,
        "backend": "cpu",
        "platform": this_platform(),
        "ggml_version": abi.ggml_version,
        "headers": headers_hash(library_folder().parent / "include"),
        "files": (PackFile(name=library.name, num_bytes=len(data), sha256=hashlib.sha256(data).hexdigest()),),
    }
    (work / "manifest.json").write_bytes(msgspec.json.encode(Manifest(**{**facts, **changes})))
    made = assets / f"{NAME}-{abi.ggml_version}.tar.xz"
    with tarfile.open(made, "w:xz", preset=0) as packed:
        for name in ("manifest.json", library.name):
            packed.add(work / name, name)
    shutil.rmtree(work)
    return made


def test_installed_for_a_device_once_and_away_after_it_was_removed(tmp_path, machine, abi, store):
    made = archive(tmp_path, abi)
    bundled.provide(machine, store, tmp_path)
    (pack,) = store.active()
    assert pack.manifest.name == NAME
    assert active_libraries()["cpu"][0].parent == pack.folder
    made.write_bytes(b"not read again")
    bundled.provide(machine, store, tmp_path)
    assert [p.folder for p in store.active()] == [pack.folder]
    store.remove(NAME)
    archive(tmp_path, abi)
    bundled.provide(machine, store, tmp_path)
    assert store.packs() == ()


def test_without_a_device_nothing_is_written(tmp_path, machine, abi, store):
    archive(tmp_path, abi)
    bundled.provide(replace(machine, devices=()), store, tmp_path)
    assert not store.folder.exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"forged": True}, "was changed"),
        ({"platform": "windows-arm64"}, "it is for windows-arm64"),
        ({"ggml_version": "0.1.2"}, "it is for ggml 0.1.2"),
        ({"headers": "0" * 64}, "built from other headers"),
        ({"glibc": "99.1"}, "it needs glibc 99.1"),
    ],
)
def test_one_that_is_forged_or_foreign_is_refused_and_not_tried_again(
    tmp_path, machine, abi, store, changes, words, monkeypatch
):
    archive(tmp_path, abi, **changes)
    bundled.provide(machine, store, tmp_path)
    assert store.packs() == ()
    assert words in bundled.failed_attempt(NAME, store).reason
    monkeypatch.setattr(bundled, "install", lambda *_a, **_k: pytest.fail("tried again"))
    bundled.provide(machine, store, tmp_path)


def test_a_truncated_archive_is_refused_and_a_whole_one_taken_after_it(tmp_path, machine, abi, store):
    made = archive(tmp_path, abi)
    whole = made.read_bytes()
    made.write_bytes(whole[: len(whole) // 2])
    bundled.provide(machine, store, tmp_path)
    assert store.packs() == ()
    assert "damaged or incomplete" in bundled.failed_attempt(NAME, store).reason
    made.write_bytes(whole)
    os.utime(made, ns=(1, 1))
    bundled.provide(machine, store, tmp_path)
    assert len(store.active()) == 1
    assert bundled.failed_attempt(NAME, store) is None


def test_a_build_for_an_older_ggml_rests_and_is_replaced(tmp_path, machine, abi, store):
    old = store.add(archive(tmp_path / "old", abi, headers="0" * 64))
    store.use(old)
    assert "cpu" not in active_libraries()
    archive(tmp_path, abi)
    bundled.provide(machine, store, tmp_path)
    assert [p.manifest.headers for p in store.active()] == [headers_hash(library_folder().parent / "include")]


def test_a_folder_that_cannot_be_written_is_no_reason_to_fail(tmp_path, machine, abi):
    archive(tmp_path, abi)
    (tmp_path / "file").write_text("")
    bundled.provide(machine, PackStore(tmp_path / "file" / "kernels"), tmp_path)


def test_every_machine_gets_a_line_about_its_gpu(machine):
    lines = gpu_lines(machine)
    assert lines
    assert all(line.startswith("GPU: ") for line in lines)
