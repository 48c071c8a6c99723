"""The checks that every change must pass, as tests, so that one command runs them all."""

import ast
import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from installers.bootstrap import kernels

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
PACKAGES = ("app", "devices", "engine", "installers", "quantize")


def tool(*command):
    done = subprocess.run(
        [str(BIN / command[0]), *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def sources():
    return [p for package in PACKAGES for p in (ROOT / package).rglob("*.py")]


@pytest.mark.process
def test_ruff_finds_nothing():
    tool("ruff", "check", "--no-cache", ".")


@pytest.mark.process
def test_the_format_is_the_formatters():
    tool("ruff", "format", "--no-cache", "--check", ".")


@pytest.mark.process
def test_imports_point_one_way():
    tool("lint-imports", "--no-cache")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.process
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="numpy has other stubs for newer Pythons")
def test_types_hold():
    """Earlier results are cached by each file's contents; a new clone starts with those of the last one."""
    folders = Path(kernels.cache_folder()).parent / "types"
    own = folders / hashlib.sha256(str(ROOT).encode()).hexdigest()[:12]
    folders.mkdir(parents=True, exist_ok=True)
    if not own.exists() and (others := sorted(folders.iterdir(), key=os.path.getmtime)):
        shutil.copytree(others[-1], own)
    own.mkdir(exist_ok=True)
    os.utime(own)
    with contextlib.suppress(OSError):  # another run deletes old ones too
        for old in sorted(folders.iterdir(), key=os.path.getmtime)[:-3]:
            shutil.rmtree(old, ignore_errors=True)
    tool("mypy", "--cache-dir", str(own))


def test_nothing_is_left_unfinished():
    marks = re.compile(r"\b(TODO|FIXME|XXX)\b")
    found = [
        f"{p.relative_to(ROOT)}:{i}"
        for p in sources()
        for i, x in enumerate(p.read_text().splitlines(), 1)
        if marks.search(x)
    ]
    assert found == []


def test_exceptions_of_the_linter_stay_few():
    """Reasons for a type of file are in pyproject.toml, so that only special ones are on lines."""
    listed = [path for folder in (*PACKAGES, "assets", "tests") for path in (ROOT / folder).rglob("*.py")]
    marked = [line for path in listed for line in path.read_text().split("\n") if "# " + "noqa: " in line]
    assert len(marked) < 150


def test_helpers_of_tests_are_imported_by_their_full_path():
    """The only form that works in every program and process: `from tests.support.servers import RunningServer`."""
    names = "|".join(p.stem for p in (ROOT / "tests" / "support").rglob("*.py"))
    bare = re.compile(rf"^\s*(?:from|import) (?:tests\.)?(?:{names})(?: |$)", re.MULTILINE)
    files = (p for p in (ROOT / "tests").rglob("*.py") if "data" not in p.parts)
    found = {str(p.relative_to(ROOT)): lines for p in files if (lines := bare.findall(p.read_text("utf-8")))}
    assert found == {}


def test_lock_files_hold_hashes_and_no_addresses():
    for lock in (ROOT / "installers" / "lock").glob("*.txt"):
        text = lock.read_text()
        assert "://" not in text, lock.name
        assert text.count("--hash=sha256:") >= text.count("=="), lock.name


def test_files_are_small():
    long = {str(p.relative_to(ROOT)): n for p in sources() if (n := len(p.read_text().splitlines())) > 600}
    assert long == {}


@pytest.mark.slow
def test_a_small_file_with_one_importer_beside_it_joins_it():
    """Child programs, commands and modules with deferred imports may have a separate file."""
    texts = {
        p: p.read_text("utf-8")
        for top in ("app", "devices", "engine", "quantize")
        for p in (ROOT / top).rglob("*.py")
    }
    modules = {".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): p for p in texts}
    users: dict[Path, set[Path]] = {p: set() for p in texts}
    at_once: set[Path] = set()
    for path, text in texts.items():
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for name in node.names:
                    found = modules.get(f"{node.module}.{name.name}") or modules.get(node.module)
                    if found and found != path:
                        users[found].add(path)
                        at_once |= {found} if node in tree.body else set()
    named = {word for text in texts.values() for word in re.findall(r"[\"']((?:\w+\.)+\w+)[\"']", text)}
    small = [
        str(path.relative_to(ROOT))
        for module, path in modules.items()
        if len(users[path]) == 1 and path in at_once and path.name != "__init__.py" and module not in named
        for user in users[path]
        if user.parent == path.parent
        and user.name != "__init__.py"
        and texts[path].count("\n") < 80
        and texts[path].count("\n") + texts[user].count("\n") <= 600
    ]
    assert small == []
