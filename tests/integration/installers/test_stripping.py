"""Libraries of the bundle without symbols for debuggers: smaller, and they still load."""

import ctypes
import shutil
import subprocess

import pytest

from installers.bundle.make import _strip

pytestmark = pytest.mark.skipif(not (shutil.which("gcc") and shutil.which("strip")), reason="no gcc or no strip")


def library(path, functions):
    """One with so many functions that only its own file can name."""
    hidden = "\n".join(
        f"static int __attribute__((noinline, used)) hidden_{n}(void) {{ return {n}; }}" for n in functions
    )
    path.parent.mkdir(exist_ok=True)
    source = path.with_suffix(".c")
    source.write_text(f"{hidden}\nint answer(void) {{ return 42; }}\n")
    subprocess.run(["gcc", "-g", "-shared", "-fPIC", "-o", str(path), str(source)], check=True)
    source.unlink()
    return path


def test_what_only_debuggers_read_is_taken_out(tmp_path):
    large, small = library(tmp_path / "large.so", range(3000)), library(tmp_path / "small.so", range(3))
    rewritten = library(tmp_path / "numpy.libs" / "libx.so.1", range(3000))
    (tmp_path / "link.so").symlink_to("large.so")
    (tmp_path / "text.so").write_text("no library")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    _strip(tmp_path)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == set(before)
    assert large.stat().st_size < len(before[large]) / 2
    changed = {path for path, data in before.items() if path.read_bytes() != data}
    assert changed == {large, tmp_path / "link.so"}
    assert (small.read_bytes(), rewritten.read_bytes()) == (before[small], before[rewritten])
    assert ctypes.CDLL(str(large)).answer() == 42
