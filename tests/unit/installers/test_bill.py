"""The bill of materials names what is installed, with its licence and the hashes of the lock."""

import hashlib
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from app.licences import UNSAID, Component
from installers.sbom import NOT_KEPT, bill, component, locked

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def made():
    return bill()


def test_every_package_is_locked_and_its_licence_is_kept_with_ours(made):
    assert made[1] == []


def test_a_package_with_markers_has_the_version_and_hashes_of_this_python_alone():
    lock = (ROOT / "installers" / "lock" / "desktop.txt").read_text()
    assert lock.count("\nnumpy==") == 2, "one for each range of Pythons"
    version, hashes = locked()["numpy"]
    assert version == metadata.version("numpy")
    begun = lock.index(f"\nnumpy=={version} ")
    assert hashes == re.findall("sha256:([0-9a-f]+)", re.match(r"\n.*(\n    --hash.*)*", lock[begun:])[0])


def test_components_have_versions_hashes_and_licences(made):
    found = {c["name"]: c for c in made[0]["components"]}
    assert found["msgspec"]["version"] == metadata.version("msgspec")
    hashes = {h["content"] for h in found["msgspec"]["externalReferences"][0]["hashes"]}
    assert hashes == set(locked()["msgspec"][1])
    assert len(hashes) > 1
    assert all(c.get("licenses") for c in made[0]["components"] if c["type"] == "library")
    model = found["spark-f16"]
    assert (
        model["hashes"][0]["content"]
        == hashlib.sha256((ROOT / "assets" / "models" / "spark-f16.gguf").read_bytes()).hexdigest()
    )
    assert len({c["bom-ref"] for c in made[0]["components"]}) == len(made[0]["components"])


@pytest.mark.process
def test_two_bills_are_the_same_and_name_nothing_of_this_computer(tmp_path):
    texts = []
    for name in ("one", "two"):
        subprocess.run([sys.executable, "installers/sbom.py", str(tmp_path / name)], cwd=ROOT, check=True)
        texts.append((tmp_path / name).read_text())
    assert texts[0] == texts[1]
    assert str(ROOT) not in texts[0]


@pytest.mark.parametrize(
    ("text", "kept"),
    [("MIT", True), ("LGPL-3.0-only", True), ("GPL-3.0-or-later", False), ("AGPL-3.0", False), ("MPL-2.0", True)],
)
def test_licences_that_ask_more_than_ours(text, kept):
    assert bool(NOT_KEPT.search(text)) is not kept


def test_a_package_without_a_licence_says_so():
    assert "licenses" not in component(Component(name="bare", version="1", licence=UNSAID), [])
