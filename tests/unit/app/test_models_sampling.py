"""`tessera models sampling`: the effective values, their origins, and values set by the user."""

import json

from click.testing import CliRunner

from app.cli.main import cli


def sampling(*arguments):
    return CliRunner().invoke(cli, ["models", "sampling", "spark", *arguments])


def test_values_are_shown_kept_and_given_back(tessera_home):
    assert "temperature         0.8     llama.cpp's default" in sampling().output
    kept = sampling("--set", "temperature=0.25", "--set", "top_k=3")
    assert "temperature         0.25    your setting for this model" in kept.output
    told = json.loads(sampling("--json").output)["sampling"]
    assert told["top_k"] == {"value": 3, "source": "user"}
    assert told["min_p"] == {"value": 0.05, "source": "llama.cpp"}
    assert "0.8" in sampling("--reset").output


def test_what_cannot_be_is_refused_and_nothing_is_kept(tessera_home):
    for change in ("temperature=hot", "temperature=9", "heat=1"):
        assert sampling("--set", change).exit_code != 0
    assert "llama.cpp's default" in sampling().output
