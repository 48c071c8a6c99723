"""Every part of the program is listed with a licence and its text."""

import json
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from app.licences import EXTRAS, components, own_licence

ROOT = Path(__file__).resolve().parents[3]


def test_every_part_has_a_licence_and_its_text():
    found = components()
    assert [each.name for each in found if not each.licence or not each.text.strip()] == []
    assert "Apache License" in own_licence()


def test_what_the_project_asks_for_is_listed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = (project["optional-dependencies"][name] for name in EXTRAS if name)
    wanted = [Requirement(words) for words in (*project["dependencies"], *(w for extra in extras for w in extra))]
    names = {canonicalize_name(each.name) for each in wanted if each.marker is None or each.marker.evaluate()}
    found = {each.name for each in components()}
    listed = {canonicalize_name(name) for name in found}
    assert names <= listed, names - listed  # missing: the environment is older than the checkout
    assert {"llama.cpp and ggml", "Inter (font)", "JetBrains Mono (font)"} <= found


def test_every_extra_that_packages_contain_is_listed():
    """A package whose licence is not listed stops the build of every installer."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (everything,) = project["optional-dependencies"]["all"]
    assert {name for name in EXTRAS if name} == Requirement(everything).extras
    found = {canonicalize_name(each.name) for each in components()}
    assert {"rich", "prompt-toolkit", "wcwidth", "huggingface-hub"} <= found


def test_the_command_prints_them(in_process):
    listed = in_process("licences", "--json")
    qt = next(each for each in json.loads(listed.stdout) if each["name"] == "PySide6_Essentials")
    assert qt["licence"].startswith("LGPL-3.0")
    text = in_process("licences", "PySide6_Essentials")
    assert "may be exchanged" in text.stdout
    assert "GNU LESSER GENERAL PUBLIC LICENSE" in text.stdout
    unknown = in_process("licences", "nobody\x1b[2J")
    assert unknown.returncode == 3
    assert "\x1b" not in unknown.stderr
