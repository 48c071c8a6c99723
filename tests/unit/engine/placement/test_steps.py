"""A load passes one list of steps, and its placement names the step that set each value."""

import json

import msgspec
import pytest
from click.testing import CliRunner

from app.cli.main import cli
from engine.message_catalog import sentence
from engine.placement import fit_report, memory_admission
from engine.placement.candidates import CPU_STEPS
from engine.placement.memory_admission import MemoryAdmission
from engine.placement.placer import Placer
from engine.placement.resources import open_resources
from engine.placement.steps import STEPS
from engine.placement.types import PlacementLimits, name_of
from engine.runner.engine_args import EngineArgs
from engine.runner.protocol import LoadSettings
from tests.support.fakes.scripted import home_paths

pytestmark = pytest.mark.native


@pytest.fixture
def placer(tmp_path):
    return Placer(open_resources(home_paths(tmp_path)))


def by_field(placement, field):
    return [(c.step, c.old, c.new) for c in placement.changes if c.field == field]


def test_the_changes_in_their_order_make_the_settings(placer, bundled_model):
    args = EngineArgs(n_batch=256, override_kv=("a=int:1",))
    base = LoadSettings(path=str(bundled_model), n_ctx=1024, kv_cells=4096, n_batch=256, n_ubatch=256)
    base = msgspec.structs.replace(base, cache_ram_bytes=1 << 20, engine_args=args)
    asked = PlacementLimits(n_ctx=512, n_parallel=2, type_k="q8_0", n_threads=1)
    placed = placer.choose("m", base, asked)
    settings = LoadSettings(path=base.path)
    for change in placed.changes:
        if change.field != "engine_args":
            assert getattr(settings, change.field) == change.old
            settings = msgspec.structs.replace(settings, **{change.field: change.new})
    assert msgspec.structs.replace(settings, engine_args=args) == placed.settings
    assert by_field(placed, "n_ctx") == [("defaults", 4096, 1024), ("requested", 1024, 512)]
    assert by_field(placed, "type_v") == [("requested", "f16", "q8_0")]
    assert by_field(placed, "n_threads") == [("cpu threads", 0, 1)]
    assert by_field(placed, "n_batch") == [("engine arguments", 2048, 256)]
    assert by_field(placed, "cache_ram_bytes") == [("prefix cache", 0, 1 << 20)]
    assert all(c.reason is not None and sentence(c.reason) for c in placed.changes)


def test_only_steps_of_the_lists_change_anything(placer, bundled_model):
    known = {"defaults", "draft model", *map(name_of, (*STEPS, *CPU_STEPS))}
    placed = placer.choose(
        "m", LoadSettings(path=str(bundled_model), kv_cells=16384), PlacementLimits(max_ctx=65536)
    )
    assert {c.step for c in placed.changes} <= known
    assert by_field(placed, "kv_cells")[-1][0] == "cache cells"


def test_a_remembered_fallback_is_a_step_and_counts_in_the_memory(placer, bundled_model):
    base = LoadSettings(path=str(bundled_model), n_ctx=1024)
    usual = placer.choose("m", base)
    placer.history.remember("m", {"n_ubatch": 128, "use_mmap": False})
    placed = placer.choose("m", base)
    assert by_field(placed, "n_ubatch") == [("fallback that worked", 512, 128)]
    assert placed.need.part_bytes("compute") < usual.need.part_bytes("compute")


def test_the_need_of_a_placement_is_not_computed_again_for_its_load(placer, bundled_model, monkeypatch):
    placed = placer.choose("m", LoadSettings(path=str(bundled_model), n_ctx=1024))
    calls = []

    def counted(*arguments):
        calls.append(arguments)
        return fit_report.load_need(*arguments)

    monkeypatch.setattr("engine.placement.placer.load_need", counted)
    monkeypatch.setattr(memory_admission, "PLENTY_FRAC", 1.0)
    admission = MemoryAdmission(placer)
    admission.reserve_now("m", placed.settings, placed)
    (held,) = placer.ledger.reservations()
    assert held.predicted_bytes == placed.need.total_bytes
    assert calls == []
    admission.release("m")
    admission.reserve_now("m", msgspec.structs.replace(placed.settings, n_ubatch=64), placed)
    assert len(calls) == 1, "a fallback takes something else"


@pytest.mark.process
def test_the_api_and_the_terminal_say_who_set_what(placer, bundled_model, tessera_home):
    answer = placer.choose("m", LoadSettings(path=str(bundled_model)), PlacementLimits(n_parallel=2))
    (change,) = [c for c in answer.changes if c.field == "n_parallel"]
    assert (change.step, change.old, change.new, str(change.reason)) == ("requested", 4, 2, "it was requested")
    assert msgspec.json.decode(msgspec.json.encode(answer), type=type(answer)) == answer
    command = ["fit", str(bundled_model), "--parallel", "2"]
    shown = CliRunner().invoke(cli, [*command, "--explain"]).output
    line = next(line for line in shown.splitlines() if "n_parallel" in line)
    assert line.split()[:4] == ["requested", "n_parallel", "4", "2"]
    assert line.rstrip().endswith("it was requested")
    found = json.loads(CliRunner().invoke(cli, [*command, "--explain", "--json"]).output)["placement"]["changes"]
    assert {"requested", "cpu threads"} <= {row["step"] for row in found}
    assert "changes" not in json.loads(CliRunner().invoke(cli, [*command, "--json"]).output)["placement"]
    assert "Source of each setting" not in CliRunner().invoke(cli, command).output
