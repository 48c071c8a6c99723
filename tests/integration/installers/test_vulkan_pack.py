"""The Vulkan packs in assets/kernels: for the locked llama.cpp, small, valid, for every system that Qt supports."""

import re
import subprocess

import pytest

from devices import install_hints
from devices.backends.libraries import library_folder
from devices.kernel_packs.abi import headers_hash, installed_abi
from devices.kernel_packs.bundled import ASSETS, bundled_pack
from devices.kernel_packs.store import PackStore
from installers.packs import toolchain
from installers.packs.build import NEWEST_GLIBC, read_manifest
from installers.packs.recipes import RECIPES

MOST_BYTES = 6_000_000
COMPILERS = {"linux-x86_64": "g++ (Debian 12", "windows-x86_64": "x86_64-w64-mingw32-g++-posix (GCC) 12-"}
# The end of a DLL, with the names of the libraries that it needs.
TABLES_BYTES = 64 << 10
# GLIBCXX_3.4.N of libstdc++ in GCC 12 (Debian 12, Ubuntu 22.04). Source: libstdc++'s ABI policy.
GCC_12 = 30


@pytest.fixture(scope="module", params=["linux-x86_64", "windows-x86_64"])
def archive(request):
    found = bundled_pack("vulkan", platform=request.param)
    assert found is not None
    return found


def test_the_hints_name_what_comes_along():
    names = {re.sub(r"-[0-9.]+\.tar\.xz$", "", path.name) for path in ASSETS.glob("*.tar.xz")}
    assert names == install_hints.BUNDLED


def test_it_is_small_and_says_what_it_was_made_with(archive):
    assert archive.stat().st_size <= MOST_BYTES
    manifest = read_manifest(archive)
    assert manifest.built["source"].endswith(re.search(r"==(\S+)", toolchain.LOCK.read_text())[1]), (
        "installers/lock/llama.txt has another version: build the pack again (docs/dev/kernels.md)"
    )
    for name, (version, _) in toolchain.locked_packages().items():
        assert f"{name} {version}" in manifest.built["packages"]
    assert re.fullmatch(r"[0-9a-f]{40}", manifest.built["commit"])
    assert "MIT" in manifest.built["licences"]
    assert manifest.built["compiler"].startswith(COMPILERS[manifest.platform])
    assert manifest.needs == RECIPES[manifest.name].needs


def test_it_is_for_the_ggml_that_is_installed(archive):
    manifest, abi = read_manifest(archive), installed_abi(library_folder())
    assert manifest.ggml_version == abi.ggml_version
    assert manifest.headers == headers_hash(library_folder().parent / "include")


def test_its_library_needs_only_what_every_system_has(archive, tmp_path):
    pack = PackStore(tmp_path / "packs").add(archive)
    (library,) = (path for path in pack.folder.iterdir() if path.suffix in {".so", ".dll"})
    data = library.read_bytes()
    # Shaders for both kinds of matrix units, integer dot products and bfloat16; no path of the build machine.
    for word in (b"_cm1", b"_cm2", b"q8_1", b"bf16"):
        assert word in data
    assert not re.search(rb"/(tmp|home|root|work|build)/", data)
    if library.suffix == ".dll":  # libraries of the compiler are inside, that of C is part of Windows
        names = {name.decode().lower() for name in re.findall(rb"[\w-]+\.dll", data[-TABLES_BYTES:])}
        assert names - {library.name} == {"ggml-base.dll", "kernel32.dll", "msvcrt.dll", "vulkan-1.dll"}
        return
    listed = subprocess.run(["readelf", "-dV", str(library)], capture_output=True, text=True, check=True).stdout
    system = {"libstdc++.so.6", "libgcc_s.so.1", "libm.so.6", "libc.so.6"}
    assert set(re.findall(r"NEEDED.*\[(.*)\]", listed)) == {"libggml-base.so.0", "libvulkan.so.1", *system}
    versions = {tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_(\d+(?:\.\d+)+)", listed)}
    assert max(versions) <= NEWEST_GLIBC
    assert max(map(int, re.findall(r"GLIBCXX_3\.4\.(\d+)", listed))) <= GCC_12
