"""`tessera devices` as shown to people and to programs."""

import json

import pytest
from click.testing import CliRunner

from app.cli.main import cli
from tests.support.machines.machines import machines

RECORDINGS = machines()


@pytest.fixture
def recording(tmp_path):
    def write(name):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(RECORDINGS[name]), encoding="utf-8")
        return str(path)

    return write


def run(*arguments):
    return CliRunner().invoke(cli, arguments)


def test_a_table_for_people(recording):
    result = run("devices", "--from", recording("sh-flow-z13-linux-gtt96"))
    assert result.exit_code == 0
    assert "Radeon 8060S" in result.output
    assert "100 GiB" in result.output
    assert "ttm" not in result.output


def test_a_reason_and_a_remedy_for_what_is_not_usable(recording):
    result = run("devices", "--from", recording("ptl-nuc16-no-driver"))
    assert "no driver" in result.output
    assert "sudo modprobe intel_vpu" in result.output


def test_json_for_programs(recording):
    result = run("devices", "--json", "--from", recording("nv-hybrid-addw4"))
    machine = json.loads(result.output)
    gpu = next(d for d in machine["devices"] if d["kind"] == "dgpu")
    assert gpu["memory"]["budget_bytes"] == 6439305216
    assert gpu["arch"] == "sm_89"


@pytest.mark.process
def test_record_and_replay(tmp_path, monkeypatch):
    monkeypatch.setenv("TESSERA_HOME", str(tmp_path / "home"))
    file = str(tmp_path / "here.json")
    assert run("devices", "--record", file).exit_code == 0
    here = json.loads(run("devices", "--json", "--fresh").output)
    replayed = json.loads(run("devices", "--json", "--from", file).output)
    assert [d["id"] for d in replayed["devices"]] == [d["id"] for d in here["devices"]]
    assert replayed["devices"][0]["state"] == here["devices"][0]["state"] == "usable"


def test_a_bad_recording_is_one_sentence(tmp_path):
    file = tmp_path / "bad.json"
    file.write_text("{}")
    result = run("devices", "--from", str(file))
    assert result.exit_code == 3
    assert "is not a machine recording" in result.output
    assert "Traceback" not in result.output


def test_no_try_reads_files_only():
    result = run("devices", "--no-try", "--json")
    assert json.loads(result.output)["backends"] == []
