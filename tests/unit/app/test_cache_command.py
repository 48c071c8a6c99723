"""Computed prefixes on disk: shown, limited and emptied."""

import json
import os
from contextlib import closing

import click
import pytest
from click.testing import CliRunner

from app.cli.main import cli
from app.cli.models import _changed
from app.cli.quantize_options import Size
from app.cli.settings_defaults import TokenCount
from engine.core.paths import user_paths
from engine.placement.load_settings import load_settings
from engine.runner.engine_args import NO_ARGS
from engine.services import EngineFacade


@pytest.fixture
def prefixes():
    """Three files of 1 MiB, the oldest first, and one of another type."""
    folder = user_paths().cache / "prefixes" / "fingerprint"
    folder.mkdir(parents=True)
    for number in range(3):
        (folder / f"{number}.kv").write_bytes(bytes(1 << 20))
        os.utime(folder / f"{number}.kv", (number, number))
    (user_paths().cache / "headers").mkdir()
    (user_paths().cache / "headers" / "x.json").write_bytes(bytes(100))
    return folder


def run(*words):
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.output
    return done.output


def test_what_is_cached_is_shown_and_emptied(prefixes):
    shown = json.loads(run("cache", "--json"))
    assert (shown["prefix_bytes"], shown["limit_bytes"], shown["others"]) == (3 << 20, 4096 << 20, {"headers": 100})
    assert "3.0 MiB" in run("cache")
    assert "3.0 MiB freed" in run("cache", "clear", "--yes")
    assert list(prefixes.iterdir()) == []
    assert run("cache", "clear").strip() == "There are no cached prompts.", "and nothing is asked"
    assert (user_paths().cache / "headers" / "x.json").exists()


def test_a_limit_deletes_the_oldest_and_holds_for_the_next_loads(prefixes, monkeypatch):
    monkeypatch.setenv("TESSERA_CACHE_PREFIX_MIB", "")  # also reverts what the program sets
    monkeypatch.delenv("TESSERA_CACHE_PREFIX_MIB")
    assert "2.0 MiB freed" in run("cache", "limit", "1")
    assert [path.name for path in prefixes.iterdir()] == ["2.kv"]
    assert run("cache", "limit").strip() == "1 MiB"
    run("cache", "limit", "2")
    run("settings", "set", "cache.prefix_mib", "1")
    assert run("settings", "get", "cache.prefix_mib").strip() == "1"
    assert os.environ["TESSERA_CACHE_PREFIX_MIB"] == "1"
    monkeypatch.setenv("TESSERA_CACHE_PREFIX_MIB", "7")
    with closing(EngineFacade()) as services:
        spark = services.model("spark")
    assert load_settings(spark, cache=user_paths().cache).cache_disk_bytes == 7 << 20
    monkeypatch.delenv("TESSERA_CACHE_PREFIX_MIB")
    assert load_settings(spark, cache=user_paths().cache).cache_disk_bytes == 4096 << 20


@pytest.mark.parametrize(("given", "mib"), [("100", "100"), ("10GB", "9536"), ("2 GiB", "2048"), ("0", "0")])
def test_the_limit_is_mebibytes_or_a_size_with_its_unit(monkeypatch, tmp_path, given, mib):
    monkeypatch.setenv("TESSERA_HOME", str(tmp_path))
    done = CliRunner().invoke(cli, ["cache", "limit", given])
    assert (done.exit_code, f"may use {mib} MiB" in done.output) == (0, True), done.output
    wrong = CliRunner().invoke(cli, ["cache", "limit", "10XB"])
    assert (wrong.exit_code, "write 4.5GB" in wrong.output) == (2, True)


@pytest.mark.parametrize(("given", "tokens"), [("32768", 32768), ("32k", 32768), ("8K", 8192), ("16", 16)])
def test_a_context_may_be_given_in_thousands(given, tokens):
    assert TokenCount(16, 1 << 24).convert(given, None, None) == tokens


@pytest.mark.parametrize("given", ["12x", "k", "99999k", "8", "-1k", "1.5k", "٣k"])
def test_what_is_no_number_of_tokens_is_refused(given):
    with pytest.raises(click.BadParameter, match=r"32768 or 32k|not in the range"):
        TokenCount(16, 1 << 24).convert(given, None, None)


def test_a_wrong_engine_argument_is_named_with_what_it_must_be():
    with pytest.raises(click.BadParameter, match=r"^ctx_size must be a whole number$"):
        _changed(NO_ARGS, ("ctx_size=abc",))


def test_a_size_without_its_unit_is_asked_about_before_anything_is_measured():
    assert Size().convert("5000000", None, None) == 5_000_000
    for given in ("6", "4500", "0"):
        with pytest.raises(click.BadParameter, match=r"no unit; write 4\.5GB"):
            Size().convert(given, None, None)


def test_a_question_that_nobody_can_answer_names_the_way_out(in_process, prefixes):
    """The whole command, because main() decides on the exit code."""
    done = in_process("cache", "clear")
    assert (done.returncode, "--yes" in done.stderr) == (2, True)
    assert len(list(prefixes.iterdir())) == 3
