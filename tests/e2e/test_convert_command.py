"""`tessera models convert`: a folder becomes a model of the library; a failed conversion leaves nothing."""

import json
import os
import subprocess
import sys

from tests.support.models.small_bert import write_bert_folder
from tests.support.servers import ROOT


def run(home, *arguments):
    env = {**os.environ, "TESSERA_HOME": str(home)}
    command = [sys.executable, "-m", "app", "models", *arguments]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=100)


def test_a_folder_becomes_a_model_once(tmp_path):
    folder = write_bert_folder(tmp_path / "my-bert")
    done = run(tmp_path / "home", "convert", str(folder), "--json")
    told = json.loads(done.stdout)
    assert (told["model"], told["type"]) == ("my-bert", "F16")
    assert "my-bert" in run(tmp_path / "home", "list", "--json").stdout
    again = run(tmp_path / "home", "convert", str(folder))
    assert again.returncode != 0
    assert "already exists" in again.stderr


def test_what_cannot_be_converted_is_said_and_leaves_nothing(tmp_path):
    folder = write_bert_folder(tmp_path / "odd", hidden_act="relu")
    done = run(tmp_path / "home", "convert", str(folder))
    assert done.returncode != 0
    assert "relu" in done.stderr
    assert "Traceback" not in done.stderr
    assert not [p for p in (tmp_path / "home" / "models").rglob("*") if p.is_file() and "odd" in p.name]
