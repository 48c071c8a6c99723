"""`tessera quantize`: its arguments, and plans that must be signed."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from app.cli.calibration_option import calibration_options
from app.cli.quantize import command
from app.cli.quantize_options import Duration, check_plan
from engine.services import EngineFacade
from tests.support.fakes.minisign_signer import Signer


@pytest.mark.parametrize(
    ("text", "seconds"), [("10min", 600), ("90s", 90), ("2h", 7200), ("1.5h", 5400), ("45", 45), ("3 m", 180)]
)
def test_times(text, seconds):
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["soon", "0", "10 parsecs", "-5min", ""])
def test_what_is_no_time_is_told(text):
    with pytest.raises(click.BadParameter, match="time"):
        Duration().convert(text, None, None)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--budget", "5MB", "--time", "10min", "--tier", "max"], "cannot be combined with --tier"),
        (["--type", "Q4_K_M", "--time", "10min"], "--type"),
        (["--budget", "5MB", "--plan", __file__], "one of"),
        (["--plan", __file__, "--lock", "attn_v=Q8_0"], "--plan already contains --tier"),
        (["--budget", "5MB", "--plan-key", "RWQ"], "goes with --plan"),
        (["--budget", "5MB", "--calibration", "/nowhere/at/all"], "there is no /nowhere"),
        ([], "Name a target"),
    ],
)
def test_wishes_that_contradict_each_other(arguments, words):
    done = CliRunner().invoke(command, ["some-model", *arguments])
    assert done.exit_code == 2
    assert words in done.output


@pytest.mark.parametrize("name", ["gptq", "craft"])
def test_gptq_is_known_by_its_earlier_name_too(name):
    given = command.make_context("quantize", ["some-model", "--bpw", "4.5", "--rounding", name]).params
    assert given["rounding"] == "gptq"
    said = CliRunner().invoke(command, ["--help"]).output
    assert "stock|rows|gptq" in said
    assert "craft" not in said


def test_a_way_of_rounding_that_there_is_not():
    done = CliRunner().invoke(command, ["some-model", "--bpw", "4.5", "--rounding", "best"])
    assert done.exit_code == 2
    assert "'stock', 'rows', 'gptq'" in done.output


def test_a_plan_must_be_signed_by_a_key_that_was_given(tmp_path):
    signer, other = Signer(), Signer()
    plan, signature = tmp_path / "a.plan.json", tmp_path / "a.plan.json.minisig"
    plan.write_bytes(b"{}")
    with pytest.raises(click.ClickException, match="cannot be read"):
        check_plan(plan, [signer.public])
    signature.write_text(signer.sign(b"{}"))
    check_plan(plan, [signer.public])
    with pytest.raises(click.ClickException, match="not signed"):
        check_plan(plan, [other.public])
    plan.write_bytes(b"{ }")
    with pytest.raises(click.ClickException, match="was changed"):
        check_plan(plan, [signer.public])


@pytest.mark.process
def test_one_file_is_taken_as_it_is_and_a_folder_becomes_a_text_that_goes_away(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("words " * 20_000)
    (tmp_path / "more.txt").write_text("more words " * 20_000)
    with calibration_options((str(text),), EngineFacade(), ask=False) as found:
        assert found == {"calibration": str(text)}
    with calibration_options((str(tmp_path),), EngineFacade(), ask=False) as found:
        paths = [Path(found[name]) for name in ("calibration", "own_text")]
        assert all("words" in p.read_text() for p in paths)
    assert not any(p.exists() for p in paths)
    with calibration_options((), EngineFacade(), ask=False) as found:
        assert found == {}
