"""Every `tessera ...` command that the program suggests exists, with its options."""

import json
import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from app.cli.main import COMMANDS, GROUPS, NotEmpty, cli
from engine.message_catalog.dispatch import COMMANDS as WAYS

ROOT = Path(__file__).resolve().parents[3]
SOURCES = [p for package in ("app", "devices", "engine", "quantize") for p in (ROOT / package).rglob("*.py")]
PAGES = [ROOT / "README.md", *(page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "adr")]
NAMED = re.compile(r"(?:`|: |\btype |\bwith |, or |: \")tessera ([a-z][a-z-]*)((?: [^\s`\"';,)]+)*)")
PROSE = {"without"}


def told():
    """(where, command, arguments) of every command line in sources and documentation."""
    return [
        (f"{path.relative_to(ROOT)}", match[1], match[2].split())
        for path in (*SOURCES, *PAGES)
        for match in NAMED.finditer(path.read_text(encoding="utf-8"))
        if match[1] not in PROSE
    ]


def found(name):
    return cli.get_command(click.Context(cli), name) if name in COMMANDS else None


def options(command):
    return {option for parameter in command.params for option in parameter.opts} | {"-h", "--help"}


def fault(name, words):
    """The error in a command line; None if it is valid."""
    command = found(name)
    if command is None:
        return f"there is no `tessera {name}`"
    if isinstance(command, click.Group) and words and re.fullmatch(r"[a-z][a-z-]*", words[0]):
        command = command.commands.get(words[0])
        if command is None:
            return f"there is no `tessera {name} {words[0]}`"
    unknown = [w for w in words if re.fullmatch(r"--[a-z-]+", w) and w not in options(command)]
    return f"`tessera {name}` has no {unknown}" if unknown else None


def leaves(command, words):
    """(words, command) of a command without subcommands, and of each of a group's."""
    if not isinstance(command, click.Group):
        return [(words, command)]
    return [leaf for name, inner in command.commands.items() for leaf in leaves(inner, (*words, name))]


def test_an_empty_name_or_path_is_refused_by_every_command():
    """Scripts pass "" for a variable that is not set, and the path "" would be the current folder."""
    refused = {
        " ".join(words): CliRunner().invoke(cli, [*words, *(["", ""] if param.nargs == -1 else [""])])
        for name in COMMANDS.keys() - {"cluster"}  # which needs Ray before anything else
        for words, command in leaves(found(name), (name,))
        for param in command.params[:1]
        if isinstance(param, click.Argument) and isinstance(param.type, NotEmpty)
    }
    assert len(refused) > 50
    assert {words for words, done in refused.items() if "it is empty" not in done.output} == set()


@pytest.mark.parametrize(
    "words",
    [
        "bench spark --picture nowhere/x.svg",
        "chat spark -p x --receipt nowhere/x.json",
        "devices --record nowhere/x.json",
        "quantize spark --budget 6MB --export-plan nowhere/x.json",
    ],
)
def test_a_file_without_a_folder_is_refused_before_the_work(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli, words.split())
    assert done.exit_code == 2
    assert "there is no folder 'nowhere'" in " ".join(done.output.split())


@pytest.mark.parametrize(
    "words", ["bench --shape list", "fit --shape list", "settings get chat.max_tokens", "tools known"]
)
def test_lists_are_json_too(words):
    done = CliRunner().invoke(cli, [*words.split(), "--json"])
    assert done.exit_code == 0
    json.loads(done.stdout)


def test_texts_and_values_may_be_empty():
    free = {
        (" ".join(words), param.name)
        for name in COMMANDS
        for words, command in leaves(found(name), (name,))
        for param in command.params
        if isinstance(param, click.Argument) and param.type is click.STRING
    }
    assert free == {
        ("chat", "words"), ("run", "words"), ("settings set", "value"), ("models search", "text"),
        ("models rename", "display_name"), ("collections search", "question"), ("collections ask", "question"),
    }  # fmt: skip


def test_what_is_named_exists():
    lines = told()
    assert len(lines) > 60
    assert [(where, wrong) for where, name, words in lines if (wrong := fault(name, words))] == []


def test_the_check_sees_what_does_not_exist():
    assert fault("unload", ["m"]) == "there is no `tessera unload`"
    assert fault("models", ["fetch", "m"]) == "there is no `tessera models fetch`"
    assert fault("fit", ["m", "--context"]) == "`tessera fit` has no ['--context']"


def test_the_flags_of_a_way_out_are_options_of_fit_and_serve():
    typed = [words for words in WAYS.values() if not words.startswith("tessera ")]
    ways = {word for words in typed for word in words.split() if word.startswith("--")}
    assert ways >= {"--kv", "--ctx", "--parallel", "--layers"}
    assert ways <= options(found("fit"))
    assert ways - {"--layers"} <= options(found("serve"))


def test_every_command_is_in_one_group_of_the_help():
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(COMMANDS)
    shown = CliRunner().invoke(cli, ["--help"], prog_name="tessera").output
    headings = [line.rstrip(":") for line in shown.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert headings == ["Options", *GROUPS]
    assert all(re.search(rf"^  {name}  ", shown, re.MULTILINE) for name in COMMANDS)


def lists(group, path=()):
    """Every command that lists something, by its words."""
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        if isinstance(command, click.Group):
            yield from lists(command, (*path, name))
        elif name == "list":
            yield (*path, name), command


def test_every_list_can_be_read_by_programs():
    every = dict(lists(cli))
    assert len(every) > 8
    assert [words for words, command in every.items() if "--json" not in options(command)] == []
