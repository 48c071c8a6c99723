"""Every file of the bundle has a known origin: a listed package, Python, or a system package."""

import os
import shutil
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

import msgspec
import pytest

from app import licences
from installers.bundle import attribution
from installers.bundle.attribution import bundled_components, written

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def start_program_of_a_build(monkeypatch):
    """Replace PyInstaller, which is only installed in the build environment."""
    made = licences.Component(name="PyInstaller's start program", version="1", licence="GPL", text="text")
    monkeypatch.setattr(attribution, "_bootloader", lambda: made)


def file_of(package):
    return next(Path(str(f.locate())) for f in metadata.distribution(package).files if f.name == "__init__.py")


def test_files_of_known_packages_of_python_and_our_own_are_in_order():
    files = [file_of("msgspec"), Path(os.__file__), Path(sysconfig.get_path("stdlib")) / "json/decoder.py"]
    parts = bundled_components([*files, ROOT / "app/licences.py"], (ROOT,), {"msgspec"})
    assert [part.name for part in parts] == ["Python", "PyInstaller's start program"]
    assert "PYTHON SOFTWARE FOUNDATION LICENSE" in parts[0].text
    assert parts[0].version == sys.version.split()[0]


def test_a_file_of_an_unlisted_package_or_of_nobody_stops_the_build(tmp_path):
    stranger = tmp_path / "libstranger.so"
    stranger.touch()
    with pytest.raises(RuntimeError, match=r"__init__\.py of msgspec") as told:
        bundled_components([file_of("msgspec"), stranger], (ROOT,), {"numpy"})
    assert f"{stranger} of no package" in str(told.value)


@pytest.mark.skipif(shutil.which("dpkg") is None, reason="no dpkg here")
def test_a_library_of_the_system_comes_with_its_package_and_copyright():
    listed = subprocess.run(["dpkg", "-L", "zlib1g"], capture_output=True, text=True, check=True).stdout.split()
    library = next(Path(path) for path in listed if ".so." in path)
    for name in (library, library.resolve(), Path("/usr" + str(library).removeprefix("/usr"))):
        part = bundled_components([name], (ROOT,), set())[-1]
        assert part.name == "zlib1g (library)"
        assert "Mark Adler" in part.text
        assert part.licence != ""


def test_the_program_lists_what_its_build_wrote_down(tmp_path, monkeypatch):
    part = licences.Component(name="libthing (library)", version="1", licence="MIT", text="words")
    (tmp_path / "licences").mkdir()
    for name in licences.ASSETS.glob("licences/*.txt"):
        shutil.copy(name, tmp_path / "licences")
    monkeypatch.setattr(licences, "ASSETS", tmp_path)
    assert part not in licences.components()
    written([part], tmp_path / licences.BROUGHT)
    assert part in licences.components()
    assert msgspec.json.decode((tmp_path / licences.BROUGHT).read_bytes())[0]["text"] == "words"
