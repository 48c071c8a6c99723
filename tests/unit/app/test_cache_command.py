"""Computed prefixes on disk: shown, limited and emptied."""

import json
import os
from contextlib import closing

import pytest
from click.testing import CliRunner

from app.cli.main import cli
from engine.core.paths import user_paths
from engine.placement.load_settings import load_settings
from engine.services import EngineFacade


@pytest.fixture
def prefixes():
    """Three files of 1 MiB, the oldest first, and one of another kind."""
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
    assert (user_paths().cache / "headers" / "x.json").exists()


def test_a_limit_deletes_the_oldest_and_holds_for_the_next_loads(prefixes, monkeypatch):
    monkeypatch.setenv("TESSERA_CACHE_PREFIX_MIB", "")  # what the program sets is taken back with it
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
