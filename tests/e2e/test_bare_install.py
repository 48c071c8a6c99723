"""A server with only the packages that pyproject.toml names without extras."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from engine.core.errors import PARTS

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def needed(lines: Iterable[str]) -> dict[str, metadata.Distribution]:
    """The distributions of these requirements and of all that they require, by canonical name."""
    waiting, found = [Requirement(line) for line in lines], {}
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        if name in found:
            continue
        found[name] = metadata.distribution(wanted.name)
        rows = map(Requirement, found[name].requires or ())
        extras = wanted.extras or {""}
        waiting += [
            row for row in rows if row.marker is None or any(row.marker.evaluate({"extra": e}) for e in extras)
        ]
    return found


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A Python whose environment, which children inherit, has links to the bare packages only."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    packages = next((folder / "venv" / "lib").glob("python*/site-packages"))
    for dist in needed(PROJECT["dependencies"]).values():
        for top in {file.parts[0] for file in dist.files or ()} - {"..", "__pycache__"}:
            source, link = Path(dist.locate_file(top)), packages / top
            if source.exists() and not link.exists():
                link.symlink_to(source)
    (packages / "tessera.pth").write_text(str(ROOT))

    def run(*arguments: str, **more: object) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "TESSERA_HOME": str(folder / "home"), "QT_QPA_PLATFORM": "offscreen"}
        command = [folder / "venv" / "bin" / "python", *arguments]
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False, **more
        )

    return run


def test_a_bare_server_needs_few_packages():
    assert len(PROJECT["dependencies"]) <= 15


def test_a_server_starts_and_answers_without_any_extra(bare):
    """`tessera chat -p` starts a server, which starts a runner: both are bare here, and the answer is complete."""
    done = bare("-m", "app", "chat", "spark", "What is a tessera?")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize(
    ("command", "part"),
    [
        (("quantize", "spark", "--bpw", "4.5", "--plan-only"), "quantize"),
        (("window",), "window"),
        (("models", "list"), "terminal"),
        (("settings", "set", "window.theme", "dark"), "terminal"),
        (("models", "search", "qwen3"), "hub"),
    ],
)
def test_a_command_of_another_part_names_it(bare, command, part):
    done = bare("-m", "app", *command)
    assert done.returncode != 0
    assert "pip install '" in done.stderr
    assert f"[{part}]'" in done.stderr


def test_each_part_lists_what_its_modules_come_from():
    """The table behind that message follows pyproject.toml."""
    owners = metadata.packages_distributions()
    for part, modules in PARTS.items():
        asked = {canonicalize_name(Requirement(line).name) for line in PROJECT["optional-dependencies"][part]}
        for module in modules:
            assert asked & {canonicalize_name(name) for name in owners.get(module, [module])}, (part, module)
