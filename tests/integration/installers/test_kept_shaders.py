"""The caching glslc of a pack build: shaders compiled for one platform are reused for the next."""

import os
import subprocess
import sys

import pytest

from installers.packs.toolchain import KEEPING_GLSLC, kept_shaders

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="packs are built on Linux")
# Records each call and writes its arguments as the output; fails on request.
COMPILER = """#!/bin/sh
echo "$@" >> "$NOTES"
[ "$FAILS" != 1 ] || { echo bad >&2; exit 7; }
while [ $# -gt 0 ]; do [ "$1" != -o ] || out=$2; [ "$1" != -MF ] || echo list > "$2"; shift; done
[ "$out" = - ] && echo told || echo "compiled for $out" > "$out"
"""


@pytest.fixture
def glslc(tmp_path):
    for name, text in (("compiler", COMPILER), ("glslc", KEEPING_GLSLC.replace("@GLSLC@", f"{tmp_path}/compiler"))):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "kept").mkdir()

    def call(*words, **env):
        all_of_it = {**os.environ, "NOTES": f"{tmp_path}/notes", "KEPT_SHADERS": f"{tmp_path}/kept", **env}
        return subprocess.run(
            [str(tmp_path / "glslc"), *words], env=all_of_it, capture_output=True, text=True, check=False
        )

    return call


def calls(tmp_path):
    notes = tmp_path / "notes"
    return len(notes.read_text().splitlines()) if notes.exists() else 0


def test_the_same_words_are_compiled_once_wherever_the_output_goes(glslc, tmp_path):
    for name, define in (("a", "-DX=1"), ("b", "-DX=1"), ("c", "-DX=2")):
        done = glslc("-O", "x.comp", "-o", f"{tmp_path}/{name}", define)
        assert (done.returncode, done.stderr) == (0, "")
    texts = [(tmp_path / name).read_text() for name in "abc"]
    assert texts == [f"compiled for {tmp_path}/{name}\n" for name in "aac"]
    assert calls(tmp_path) == 2


def test_what_fails_or_writes_a_list_or_to_the_screen_is_not_kept(glslc, tmp_path):
    for _ in range(2):
        assert glslc("x.comp", "-o", f"{tmp_path}/a", FAILS="1").returncode == 7
        assert glslc("x.comp", "-o", "-").stdout == "told\n"
        assert glslc("x.comp", "-o", f"{tmp_path}/a", "-MD", "-MF", f"{tmp_path}/a.d").returncode == 0
        assert glslc("x.comp", "-o", f"{tmp_path}/a", KEPT_SHADERS="").returncode == 0
    assert calls(tmp_path) == 8
    assert list((tmp_path / "kept").iterdir()) == []


def test_other_sources_or_another_compiler_begin_anew(tmp_path):
    shader = tmp_path / "tree/ggml/src/ggml-vulkan/vulkan-shaders/x.comp"
    compiler = tmp_path / "newer-root/usr/bin/glslc"
    for path in (shader, compiler):
        path.parent.mkdir(parents=True)
        path.write_text("one")
    folders = [kept_shaders(tmp_path, tmp_path / "tree")]
    for path in (shader, compiler):
        path.write_text("two")
        folders.append(kept_shaders(tmp_path, tmp_path / "tree"))
    assert len({each["KEPT_SHADERS"] for each in folders}) == 3
