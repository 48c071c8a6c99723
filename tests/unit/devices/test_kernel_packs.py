"""Kernel packs: which are refused, and the state after using, going back and removing."""

import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

import msgspec
import pytest

from devices.errors import PackRefused
from devices.kernel_packs.abi import Abi, check_fits, headers_hash
from devices.kernel_packs.manifest import Manifest, PackFile, check_files, parse, this_platform
from devices.kernel_packs.store import PackStore


def manifest(data: bytes = b"library", **changes) -> Manifest:
    file = PackFile(name="libggml-x.so", num_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    facts = {
        "format": 1,
        "name": "x-pack",
        "version": "1.0",
        "backend": "x",
        "platform": this_platform(),
        "ggml_version": "0.25.3",
        "headers": "h",
        "files": (file,),
    }
    return Manifest(**{**facts, **changes})


def write_folder(folder: Path, found: Manifest, data: bytes = b"library") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").write_bytes(msgspec.json.encode(found))
    (folder / "libggml-x.so").write_bytes(data)
    return folder


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": 2}, "format 2"),
        ({"name": "../x"}, "not a plain word"),
        ({"backend": "X Y"}, "not a plain word"),
        ({"files": ()}, "list of files"),
        ({"files": (PackFile(name="../a", num_bytes=1, sha256="0" * 64),)}, "no plain name"),
        ({"files": (PackFile(name="a", num_bytes=1, sha256="zz"),)}, "no SHA-256"),
        ({"files": (PackFile(name="a", num_bytes=0, sha256="0" * 64),)}, "0 bytes"),
        ({"files": (PackFile(name="manifest.json", num_bytes=1, sha256="0" * 64),)}, "list of files"),
    ],
)
def test_manifests_that_are_refused(changes, words):
    with pytest.raises(PackRefused, match=words):
        parse(msgspec.json.encode(manifest(**changes)))


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff\xfe", b'{"format": "x"}', b"[" * 100_000])
def test_garbage_is_no_manifest(data):
    with pytest.raises(PackRefused, match="cannot be read"):
        parse(data)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"platform": "plan9-vax"}, "plan9-vax"),
        ({"ggml_version": "0.1.0"}, "ggml 0.1.0"),
        ({"headers": "other"}, "other headers"),
        ({"glibc": "99.1"}, "glibc 99.1"),
    ],
)
def test_packs_for_something_else_are_refused(changes, words):
    with pytest.raises(PackRefused, match=words):
        check_fits(manifest(**changes), Abi(ggml_version="0.25.3", headers="h"))


def test_a_pack_for_this_ggml_fits():
    check_fits(manifest(glibc="2.3.4"), Abi(ggml_version="0.25.3", headers="h"))
    check_fits(manifest(headers="any"), Abi(ggml_version="0.25.3", headers=""))  # headers not installed


def test_headers_hash_needs_every_header(tmp_path):
    for name in ("ggml.h", "ggml-backend.h", "ggml-alloc.h", "ggml-cpu.h"):
        assert headers_hash(tmp_path) == ""
        (tmp_path / name).write_text(name)
    first = headers_hash(tmp_path)
    (tmp_path / "ggml.h").write_text("changed")
    assert len(first) == 64
    assert headers_hash(tmp_path) != first


def test_changed_short_and_linked_files_are_found(tmp_path):
    found = manifest()
    folder = write_folder(tmp_path / "a", found)
    check_files(found, folder)
    (folder / "libggml-x.so").write_bytes(b"librarY")
    with pytest.raises(PackRefused, match="was changed"):
        check_files(found, folder)
    (folder / "libggml-x.so").write_bytes(b"lib")
    with pytest.raises(PackRefused, match="7 bytes"):
        check_files(found, folder)
    (folder / "libggml-x.so").unlink()
    (folder / "libggml-x.so").symlink_to("/etc/passwd")
    with pytest.raises(PackRefused, match="7 bytes"):
        check_files(found, folder)


def tar_of(path: Path, contents: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:xz") as archive:
        for name, data in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def zip_of(path: Path, contents: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in contents.items():
            archive.writestr(name, data)
    return path


@pytest.mark.parametrize("pack", [tar_of, zip_of])
def test_archives_give_their_named_files_only(tmp_path, pack):
    found = manifest()
    contents = {
        "manifest.json": msgspec.json.encode(found),
        "libggml-x.so": b"library",
        "../../outside": b"no",
        "extra.sh": b"no",
    }
    store = PackStore(tmp_path / "store")
    added = store.add(pack(tmp_path / "pack.archive", contents))
    assert sorted(p.name for p in added.folder.iterdir()) == ["libggml-x.so", "manifest.json"]
    assert not (tmp_path / "outside").exists()
    assert not [p for p in store.folder.iterdir() if p.name.startswith(".incoming")]


@pytest.mark.parametrize("pack", [tar_of, zip_of])
def test_archives_that_are_short_or_too_long_leave_nothing(tmp_path, pack):
    store = PackStore(tmp_path / "store")
    head = msgspec.json.encode(manifest())
    for contents in (
        {"manifest.json": head},
        {"manifest.json": head, "libggml-x.so": b"x" * 1_000_000},
        {"a": b""},
    ):
        with pytest.raises(PackRefused):
            store.add(pack(tmp_path / "pack.archive", contents))
        assert list(store.folder.iterdir()) == []


def test_a_file_that_is_no_archive(tmp_path):
    (tmp_path / "x").write_bytes(b"nothing of the kind")
    with pytest.raises(PackRefused, match="neither a folder"):
        PackStore(tmp_path / "store").add(tmp_path / "x")


def test_use_rollback_and_remove(tmp_path):
    store = PackStore(tmp_path / "store")
    builds = []
    for i in range(3):
        data = f"library {i}".encode()
        source = write_folder(tmp_path / f"source{i}", manifest(data, version=f"1.{i}"), data)
        builds.append(store.add(source))
        assert [p.manifest.version for p in store.active()] == ([f"1.{i - 1}"] if i else [])
        store.use(builds[-1])
    assert [p.manifest.version for p in store.active()] == ["1.2"]
    assert sorted(p.manifest.version for p in store.packs()) == ["1.1", "1.2"]  # the oldest was deleted
    back = store.rollback("x-pack")
    assert back is not None
    assert back.manifest.version == "1.1"
    assert [p.manifest.version for p in store.active()] == ["1.1"]
    forward = store.rollback("x-pack")
    assert forward is not None
    assert forward.manifest.version == "1.2"
    store.remove("x-pack")
    assert store.packs() == ()
    for verb in (store.rollback, store.remove):
        with pytest.raises(PackRefused, match="no pack named"):
            verb("x-pack")


def test_the_first_build_has_nothing_to_go_back_to(tmp_path):
    store = PackStore(tmp_path / "store")
    store.use(store.add(write_folder(tmp_path / "source", manifest())))
    assert store.rollback("x-pack") is None
    assert store.active() == ()
    assert store.rollback("x-pack") is not None  # and back again


def test_a_damaged_store_is_passed_over(tmp_path):
    store = PackStore(tmp_path / "store")
    pack = store.add(write_folder(tmp_path / "source", manifest()))
    store.use(pack)
    (store.folder / "x-pack" / "in_use.json").write_text("{")
    assert store.active() == ()
    (pack.folder / "manifest.json").write_text("nonsense")
    assert store.packs() == ()
