"""The collected bundle: libraries without debug symbols, no paths of the build."""

import ctypes
import shutil
import subprocess

import pytest

from installers.bundle.make import _forget_scripts, _strip

pytestmark = pytest.mark.skipif(not (shutil.which("gcc") and shutil.which("strip")), reason="no gcc or no strip")


def library(path, functions):
    """A library with this many functions that are visible only inside its file."""
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


def test_lists_of_files_name_nothing_of_the_build_environment(tmp_path):
    record = tmp_path / "x-1.dist-info" / "RECORD"
    record.parent.mkdir()
    kept = "x/__init__.py,sha256=abc,1\nx-1.dist-info/METADATA,sha256=def,2\n"
    record.write_text(f"../../../bin/x,sha256=ghi,3\n{kept}x-1.dist-info/direct_url.json,sha256=jkl,4\n")
    _forget_scripts(tmp_path)
    assert record.read_text() == kept
