"""A folder of an unsupported architecture, in the terminal with a server: consent, conversion, removal."""

import json
import os
import subprocess
import sys

import httpx2
import pytest

from tests.support.fakes.standin_converter import foreign_folder, stand_in
from tests.support.servers import ROOT

pytestmark = pytest.mark.e2e


def ran(server, *arguments, answer="n\n"):
    env = {**os.environ, "TESSERA_HOME": str(server.home), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "app", *arguments]
    done = subprocess.run(command, input=answer, env=env, capture_output=True, text=True, timeout=110)
    return done.returncode, done.stdout, done.stderr


def test_it_is_asked_for_then_does_its_work_and_can_be_removed(beside, tmp_path):
    folder = foreign_folder(tmp_path / "pebble")
    for command in (("models", "convert", str(folder)), ("quantize", str(folder), "--type", "Q8_0")):
        code, _, errors = ran(beside, *command)
        assert code == 130, errors
        assert "GraniteForCausalLM is not supported by Tessera's converter" in errors
        assert "downloads about" in errors
        assert "Get llama.cpp's converter?" in errors
        assert not (beside.home / "converter").exists(), "nothing is fetched before the answer"
    code, out, errors = ran(beside, "models", "converter", "show")
    assert code == 0, errors
    assert "is not here" in out

    stand_in(beside.home / "converter")
    code, out, errors = ran(beside, "models", "convert", str(folder), "--json")
    assert code == 0, errors
    assert json.loads(out)["model"] == "pebble"
    code, out, errors = ran(beside, "models", "converter", "show", "--json")
    told = json.loads(out)
    assert told["installed"]
    assert told["bytes"] > 0
    assert "GraniteForCausalLM" in told["architectures"]

    small = tmp_path / "small.gguf"
    options = ["--type", "Q8_0", "--no-verify", "--threads", "1"]
    code, out, errors = ran(beside, "quantize", str(foreign_folder(tmp_path / "gravel")), str(small), *options)
    assert code == 0, errors
    assert "was made by llama.cpp's converter" in errors
    assert small.read_bytes()[:4] == b"GGUF"

    code, out, errors = ran(beside, "models", "converter", "remove", "--yes")
    assert code == 0, errors
    assert "are free again" in out
    assert not (beside.home / "converter").exists()


def test_a_family_that_nobody_knows_is_refused_by_name(beside, tmp_path):
    folder = foreign_folder(tmp_path / "dust", "NobodyForCausalLM")
    code, _, errors = ran(beside, "models", "convert", str(folder), "--yes")
    assert code == 3, errors
    assert "NobodyForCausalLM" in errors
    headers = {"Authorization": f"Bearer {beside.token}"}
    state = httpx2.get(f"{beside.url}/tessera/v1/converter", headers=headers).json()
    assert not state["installed"]
    assert state["version"] in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
