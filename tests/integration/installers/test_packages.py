"""Desktop integration files, and packages built from a small substitute of the program's folder."""

import gzip
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from app.cli.main import COMMANDS
from devices.kernel_packs.bundled import bundled_pack
from engine.core.version import __version__
from installers.linux import manual
from installers.packs.recipes import RECIPES

ROOT = Path(__file__).resolve().parents[3]
PACK = bundled_pack("vulkan", platform="linux-x86_64")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux packages")


@pytest.fixture
def program(tmp_path) -> Path:
    folder = tmp_path / "tessera"
    (folder / "_internal").mkdir(parents=True)
    (folder / "tessera").write_text("#!/bin/sh\necho stand-in\n")
    (folder / "tessera").chmod(0o755)
    (folder / "_internal" / "lib.so").write_bytes(b"x" * 100_000)
    (folder / "_internal" / "lib.so.0").symlink_to("lib.so")
    (folder / "_internal" / "kernels").mkdir(mode=0o700)
    kept = folder / "_internal" / "assets" / "kernels"
    kept.mkdir(parents=True)
    shutil.copy(PACK, kept)
    return folder


def test_a_program_without_its_kernel_packs_becomes_no_package(program, tmp_path):
    from installers.build import require_packs

    require_packs(program, platform="linux-x86_64")
    (program / "_internal" / "assets" / "kernels" / PACK.name).write_bytes(b"another build")
    for platform in ("linux-x86_64", "windows-x86_64"):
        with pytest.raises(SystemExit, match=r"but not in the program"):
            require_packs(program, platform=platform)
    require_packs(program, platform="macos-aarch64")


def test_our_own_kernels_for_windows_go_beside_llama_cpps_libraries(tmp_path):
    from devices.kernel_packs.abi import HEADERS, headers_hash
    from devices.kernel_packs.manifest import FORMAT, Manifest, PackFile
    from installers.build import add_pack, require_own_kernels
    from installers.packs.build import write_archive

    package = tmp_path / "program" / "_internal" / "llama_cpp"
    for folder in ("lib", "include"):
        (package / folder).mkdir(parents=True)
    for header in HEADERS:
        (package / "include" / header).write_text(header)
    made = [tmp_path / "ggml-tiles.dll", tmp_path / "mingw-w64-LICENCE.txt"]
    for file in made:
        file.write_bytes(b"of " + file.name.encode())
    files = tuple(
        PackFile(name=p.name, num_bytes=p.stat().st_size, sha256=hashlib.sha256(p.read_bytes()).hexdigest())
        for p in made
    )
    archive = tmp_path / "tiles-windows-x86_64-0.1.tar.xz"
    manifest = Manifest(
        format=FORMAT, name="tiles-windows-x86_64", version="0.1", backend="tiles", platform="windows-x86_64",
        ggml_version="0.1", headers=headers_hash(package / "include"), files=files,
    )  # fmt: skip
    write_archive(manifest, made, archive)
    program = tmp_path / "program"
    with pytest.raises(SystemExit, match=r"--pack tiles-windows-x86_64-….tar.xz"):
        require_own_kernels(program, "windows-x86_64")
    with pytest.raises(SystemExit, match=r"OpenMP"):
        require_own_kernels(program, "linux-x86_64")
    require_own_kernels(program, "macos-aarch64")
    add_pack(program, archive, tmp_path)
    assert [path.name for path in (package / "lib").iterdir()] == ["ggml-tiles.dll"]
    assert not (program / "_internal" / "assets").exists()
    require_own_kernels(program, "windows-x86_64")
    (package / "include" / HEADERS[0]).write_text("another ggml")
    with pytest.raises(SystemExit, match=r"other headers of ggml"):
        add_pack(program, archive, tmp_path)


def test_the_windows_installer_takes_the_whole_folder_and_the_workflow_brings_our_kernels():
    script = (ROOT / "installers" / "windows" / "tessera.nsi").read_text()
    assert 'File /r "${PROGRAM}\\*.*"' in script
    flow = (ROOT / ".github" / "workflows" / "packages.yml").read_text()
    assert "build.py vulkan-windows-x86_64" in flow
    assert "build.py tiles-windows-x86_64" in flow
    assert "--pack windows-kernels/tiles-windows-x86_64" in flow


def test_the_deb_holds_what_a_desktop_wants_and_is_the_same_twice(program, tmp_path):
    if shutil.which("dpkg-deb") is None:
        pytest.skip("no dpkg-deb here")
    from installers.linux.packages import ID, deb

    first = deb(program, tmp_path, __version__, tmp_path / "a")
    data = first.read_bytes()
    assert deb(program, tmp_path, __version__, tmp_path / "b").read_bytes() == data
    listed = subprocess.run(["dpkg-deb", "-c", str(first)], capture_output=True, text=True, check=True).stdout
    for path in (
        "./usr/lib/tessera/tessera",
        "./usr/bin/tessera -> ../lib/tessera/tessera",
        f"./usr/lib/tessera/_internal/assets/kernels/{PACK.name}",
        f"./usr/share/applications/{ID}.desktop",
        f"./usr/share/metainfo/{ID}.metainfo.xml",
        "./usr/share/mime/packages/tessera.xml",
        "./usr/share/man/man1/tessera.1.gz",
        "./usr/lib/systemd/user/tessera.service",
        "./usr/share/bash-completion/completions/tessera",
    ):
        assert path in listed
    assert "root/root" in listed
    modes = {line.split()[0] for line in listed.splitlines() if line.startswith("d")}
    assert modes == {"drwxr-xr-x"}, "a folder that others cannot read"
    version = subprocess.run(["dpkg-deb", "-f", str(first), "Version"], capture_output=True, text=True, check=True)
    assert version.stdout.strip() == __version__


def test_the_run_file_installs_below_a_prefix_and_removes_itself(program, tmp_path):
    from installers.linux.packages import ID, run_file

    file = run_file(program, tmp_path, __version__, tmp_path / "work")
    assert run_file(program, tmp_path, __version__, tmp_path / "again").read_bytes() == file.read_bytes()
    prefix = tmp_path / "a prefix"
    subprocess.run([str(file), "--prefix", str(prefix)], check=True, capture_output=True)
    said = subprocess.run([str(prefix / "bin" / "tessera")], capture_output=True, text=True, check=True)
    assert said.stdout == "stand-in\n"
    entry = ConfigParser(interpolation=None)
    entry.read(prefix / "share" / "applications" / f"{ID}.desktop")
    assert shlex.split(entry["Desktop Entry"]["Exec"])[0] == f"{prefix}/bin/tessera"
    service = (prefix / "lib" / "systemd" / "user" / "tessera.service").read_text()
    assert f'ExecStart="{prefix}/bin/tessera" ' in service
    assert (prefix / "lib" / "tessera" / "_internal" / "lib.so.0").is_symlink()
    kept = prefix / "lib" / "tessera" / "_internal" / "assets" / "kernels" / PACK.name
    assert kept.read_bytes() == PACK.read_bytes()
    subprocess.run([str(file), "--prefix", str(prefix)], check=True, capture_output=True)  # over itself
    assert not (prefix / ".tessera-new").exists()
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "tail", "tar", "mkdir", "rm"):
        (tools / name).symlink_to(shutil.which(name) or name)
    without = {"PATH": str(tools), "HOME": str(tmp_path)}
    unpacked = [str(file), "--prefix", str(prefix)]
    done = subprocess.run(unpacked, env=without, capture_output=True, text=True, check=False)
    assert (done.returncode, "install xz-utils" in done.stderr) == (3, True)
    subprocess.run([str(prefix / "bin" / "tessera")], check=True, capture_output=True)  # the old one still runs
    (prefix / "share" / "tessera").mkdir()
    (prefix / "share" / "tessera" / "mine").write_text("a model")
    home = tmp_path.parent / f"home-{os.getpid()}"
    home.mkdir()
    prefix.rename(home / ".local")
    subprocess.run([str(file), "--remove"], check=True, capture_output=True, env={**os.environ, "HOME": str(home)})
    left = [p for p in home.rglob("*") if not p.is_dir() and b"tessera" in f"{p}".encode() + p.read_bytes()]
    assert [p.name for p in left] == ["mine"]


@pytest.mark.parametrize("order", [("--remove", "--prefix", "{}"), ("--prefix", "{}", "--remove")])
def test_the_run_file_removes_what_it_installed_below_another_prefix(program, tmp_path, order):
    from installers.linux.packages import run_file

    file = run_file(program, tmp_path, __version__, tmp_path / "work")
    home = {"env": {**os.environ, "HOME": str(tmp_path / "home")}, "cwd": tmp_path, "check": True}
    subprocess.run([str(file), "--prefix", "there"], capture_output=True, **home)  # below the current folder
    entry = next((tmp_path / "there" / "share" / "applications").iterdir())
    assert f'Exec="{tmp_path}/there/bin/tessera"' in entry.read_text()
    subprocess.run([str(file), *(word.format("there") for word in order)], capture_output=True, **home)
    assert not [path for path in (tmp_path / "there").rglob("*tessera*") if not path.is_dir()]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--nonsense"], 2, "unknown option"),
        (["--prefix"], 2, "--prefix needs a folder"),
        (["--prefix", "", "--remove"], 2, "--prefix needs a folder"),
        (["--prefix", "--remove"], 2, "--prefix needs a folder"),
        (["--extract"], 2, "--extract needs a folder"),
        (["--prefix", "/nowhere/100%"], 2, "a menu entry cannot name"),
        (["--prefix", "/nowhere/a\\b"], 2, "a menu entry cannot name"),
        (["--remove", "--prefix", "/nowhere"], 1, "There is no Tessera below /nowhere"),
        (["--remove"], 1, "There is no Tessera below"),
    ],
)
def test_the_run_file_refuses_what_it_cannot_do(program, tmp_path, arguments, code, words):
    from installers.linux.packages import run_file

    file = run_file(program, tmp_path, __version__, tmp_path / "work")
    home = {"HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"]}
    done = subprocess.run([str(file), *arguments], env=home, capture_output=True, text=True, check=False)
    assert (done.returncode, words in done.stderr) == (code, True), done.stderr
    assert not (tmp_path / "home").exists()


def test_metadata_names_this_program():
    from installers.linux.packages import HERE, ID

    text = (HERE / f"{ID}.metainfo.xml.in").read_text().replace("@VERSION@", "1").replace("@DATE@", "2026-01-01")
    tree = ET.fromstring(text)
    assert tree.findtext("id") == ID
    assert tree.findtext("project_license") == "Apache-2.0"
    entry = ConfigParser(interpolation=None)
    entry.read(HERE / f"{ID}.desktop")
    assert entry["Desktop Entry"]["MimeType"] == "application/x-gguf;"
    mime = ET.fromstring((HERE / "tessera.xml").read_text())
    assert mime[0].attrib["type"] == "application/x-gguf"


def test_the_manual_names_every_command():
    page = manual.manual("1.2")
    for name in COMMANDS:
        assert name.replace("-", "\\-") in page
    assert "Tessera 1.2" in page


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions_call_the_command(shell):
    assert "_TESSERA_COMPLETE" in manual.completion(shell)


def test_recipes_are_packs_that_doctor_names():
    for name, recipe in RECIPES.items():
        assert name.endswith(recipe.platform)
        assert recipe.tried
    assert {"vulkan-linux-x86_64", "vulkan-windows-x86_64"} <= set(RECIPES)


def test_the_page_is_compressed_without_a_date(program, tmp_path):
    from installers.linux.packages import tree

    tree(program, tmp_path / "root", __version__)
    page = (tmp_path / "root/usr/share/man/man1/tessera.1.gz").read_bytes()
    assert page[4:8] == b"\0\0\0\0"
    assert b"TESSERA" in gzip.decompress(page)
