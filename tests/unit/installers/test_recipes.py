"""Recipes that cannot run where tests run: the files that they name exist, and they can be parsed."""

import plistlib
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
import yaml

from engine.core.defaults import DEFAULT_PORT
from installers.bundle import icons
from installers.packs import toolchain
from installers.packs.build import ALIGNED_MOVE, compiler_flags
from installers.packs.recipes import RECIPES

ROOT = Path(__file__).resolve().parents[3]
INSTALLERS = ROOT / "installers"
UNTRIED = (
    "container/Dockerfile", "container/compose.yaml", "flatpak/io.github.tessera.Tessera.yaml", "linux/appimage.sh",
    "windows/winget/Tessera.Tessera.yaml.in", "macos/dmg.sh",
)  # fmt: skip


@pytest.mark.parametrize("name", UNTRIED)
def test_each_says_that_it_was_not_tried(name):
    head = (INSTALLERS / name).read_text(encoding="utf-8").split("\n\n")[0]
    assert "Untested" in head
    assert Path(name).name.removesuffix(".in") in (INSTALLERS / "README.md").read_text(encoding="utf-8")


def test_yaml_can_be_read_and_its_sources_are_there():
    flatpak = INSTALLERS / "flatpak" / "io.github.tessera.Tessera.yaml"
    recipe = yaml.safe_load(flatpak.read_text(encoding="utf-8"))
    assert recipe["id"] == flatpak.stem
    sources = [flatpak.parent / each["path"] for each in recipe["modules"][0]["sources"]]
    assert [each for each in sources if not each.exists() and "build" not in each.parts] == []
    for name in re.findall(r"install -Dm644 (\S+)", "\n".join(recipe["modules"][0]["build-commands"])):
        assert any((each / name).exists() or each.name == name for each in sources), name
    compose = yaml.safe_load((INSTALLERS / "container" / "compose.yaml").read_text(encoding="utf-8"))
    assert str(DEFAULT_PORT) in compose["services"]["web"]["environment"]["OPENAI_API_BASE_URL"]
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "packages.yml").read_text(encoding="utf-8"))
    built = {each["target"] for each in workflow["jobs"]["build"]["strategy"]["matrix"]["include"]}
    build = (INSTALLERS / "build.py").read_text(encoding="utf-8")
    assert all(f'"{target}"' in build for target in built)


def test_the_container_asks_the_port_that_is_served():
    text = (INSTALLERS / "container" / "Dockerfile").read_text(encoding="utf-8")
    assert set(map(int, re.findall(r"(?:EXPOSE |127\.0\.0\.1[:/])(\d+)", text))) == {DEFAULT_PORT}


@pytest.mark.native
def test_icons_hold_every_size(tmp_path):
    from PySide6.QtGui import QImage

    icons.write(tmp_path)
    found = (tmp_path / "tessera.ico").read_bytes()
    _, kind, count = struct.unpack_from("<HHH", found)
    assert (kind, count) == (1, len(icons.ICO_SIZES))
    for number, size in enumerate(icons.ICO_SIZES):
        width, *_, length, at = struct.unpack_from("<BBBBHHII", found, 6 + 16 * number)
        image = QImage.fromData(found[at : at + length], "PNG")
        assert (image.width(), image.height(), width) == (size, size, size % 256)
        middle = image.copy(size // 4, size // 4, size // 2, size // 2)
        assert any(middle.pixelColor(x, x).alpha() for x in range(size // 2)), "it is empty"
    whole = (tmp_path / "tessera.icns").read_bytes()
    assert struct.unpack(">4sI", whole[:8]) == (b"icns", len(whole))
    assert QImage.fromData((tmp_path / "tessera.png").read_bytes()).width() == 512


@pytest.mark.process
def test_scripts_and_lists_of_macos_can_be_read():
    for name in ("macos/dmg.sh", "linux/appimage.sh"):
        done = subprocess.run(
            [shutil.which("sh") or "sh", "-n", INSTALLERS / name], capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr
    for name in ("Info.plist.in", "entitlements.plist"):
        assert plistlib.loads((INSTALLERS / "macos" / name).read_bytes())


@pytest.mark.parametrize(
    ("recipe", "tool", "printed", "words"),
    [
        ("cuda-linux-x86_64", "nvcc", "Cuda compilation tools, release 13.2, V13.2.51", "miscompiles IQ1_S"),
        ("cuda-linux-x86_64", "nvcc", "Cuda compilation tools, release 13.2, V13.2.78", "miscompiles IQ1_S"),
        ("cuda-linux-x86_64", "nvcc", "Cuda compilation tools, release 13.2, V13.2.86", ""),
        ("cuda-linux-x86_64", "nvcc", "Cuda compilation tools, release 13.0, V13.0.88", ""),
        ("rocm-linux-x86_64", "hipcc", "HIP version: 7.1.52802", "this hipcc is 7.1, and 7.14 is the oldest"),
        ("rocm-linux-x86_64", "hipcc", "HIP version: 7.14.60850", ""),
        ("vulkan-linux-x86_64", "glslc", "shaderc 2026.4", ""),
    ],
)
@pytest.mark.process
def test_a_tool_that_builds_bad_kernels_is_refused(tmp_path, recipe, tool, printed, words):
    program = tmp_path / tool
    program.write_text(f"#!/bin/sh\necho '{printed}'\n")
    program.chmod(0o755)
    said = toolchain.bad_tool(RECIPES[recipe], {"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert said == "" if not words else words in said


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_every_compiler_of_a_pack_writes_the_same_names_for_the_folders_of_a_build(name, tmp_path):
    recipe = RECIPES[name]
    folders = {tmp_path: "work", tmp_path / "sources": "llama.cpp"}
    flags = dict(flag.removeprefix("-D").split("=", 1) for flag in compiler_flags(recipe, folders, " -include x"))
    if recipe.toolchain == "msvc":
        assert flags == {}
        return
    languages = {"cuda": {"CUDA"}, "rocm": {"HIP"}}.get(recipe.backend, set())
    rule = flags.pop("CMAKE_HIP_COMPILE_OBJECT", "")
    assert ("-cuid=<OBJECT>" in rule) == (recipe.backend == "rocm")
    assert set(flags) == {f"CMAKE_{language}_FLAGS" for language in {"C", "CXX", *languages}}
    for words in flags.values():
        options = words.replace("-Xcompiler=", "").replace(",", " ").split()
        assert [f"-ffile-prefix-map={folder}={short}" for folder, short in folders.items()] == options[:2]
    assert flags["CMAKE_CXX_FLAGS"].endswith(" -include x")
    if recipe.backend == "cuda":
        assert flags["CMAKE_CUDA_FLAGS"].startswith("-Xcompiler=-ffile-prefix-map=")
        assert " " not in flags["CMAKE_CUDA_FLAGS"], "nvcc has no such option of its own"


@pytest.mark.parametrize(
    ("line", "faults"),
    [
        ("vmovdqa %ymm0,0x170(%rsp)", True),
        ("vmovaps 0x40(%rsp),%zmm3", True),
        ("vmovdqa64 %zmm1,-0x80(%rbp){%k1}", True),
        ("vmovdqu %ymm0,0x170(%rsp)", False),
        ("vmovdqa %ymm0,%ymm1", False),
        ("vmovdqa %xmm6,0x20(%rsp)", False),
        ("vaddps 0x20(%rsp),%ymm0,%ymm1", False),
    ],
)
def test_moves_that_fault_on_the_stack_of_windows_are_known(line, faults):
    assert bool(ALIGNED_MOVE.search(f"   1234:\t{line}")) == faults


def test_a_shader_whose_half_float_constant_is_infinite_is_found(tmp_path):
    def shader(bits):
        header = (0x07230203, 0x10500, 0, 100, 0)
        constant = (4 << 16 | 43, 78, 466, bits)
        converted = (4 << 16 | 115, 434, 467, 466)
        return struct.pack("<13I", *header, *constant, *converted)

    (tmp_path / "shaders.spv").mkdir()  # ggml's name for such a folder
    for name, bits in (("zero", 0), ("minus", 0xFF000000), ("infinite", 0x7F800000), ("nan", 0x7FC00000)):
        (tmp_path / "shaders.spv" / f"{name}.spv").write_bytes(shader(bits))
    assert toolchain.unsound_shaders(tmp_path) == ["infinite", "nan"]
