"""Every command in the documentation is valid, and either runs or has an entry with the reason why not."""

import re
import shlex
import shutil
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from app.cli.main import cli
from app.client import Client
from tests.support.servers import RunningServer

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
# A line's explanation: after a # or, in a table of commands, after several spaces.
BEHIND = re.compile(r"\s+#\s.*|\s{3,}\S.*")
# Placeholder names in the documentation, and their values when a line runs here.
PLACES = {"MODEL": "spark", "~/Documents/papers": "papers-folder"}

# Run in page order with one running server; the output must contain these words.
RUN = {
    "tessera collections add papers ~/Documents/papers": "papers",
    'tessera collections search papers "when is the rent due"': "fifth",
    'tessera collections ask papers "when is the rent due"': "",
    "tessera collections unread papers": "",
    "tessera collections list": "papers",
    "tessera collections show papers": "papers",
    "tessera collections refresh papers": "",
    "tessera collections remove papers": "",
    "tessera models engine-args MODEL": "",
    "tessera models load MODEL --kv q8_0": "spark is loaded",
    "tessera models engine-args MODEL --reset": "",
    "tessera models converter show": "is not here",
    "tessera kernels list": "",
    "tessera engine list": "",
    "tessera engine faults": "known faults",
    "tessera engine faults --all": "hip-jamba",
    "tessera devices": "cpu",
    "tessera fit MODEL": "fits",
    "tessera fit MODEL --explain": "Source of each setting",
    "tessera fit MODEL --ctx 65536": "",
    "tessera fit --shape llama3.2-1b": "fits",
    "tessera models starters": "tessera models pull",
    "tessera launch": "zed",
    "tessera upstreams add desk http://10.0.0.2:8000": "desk",
    "tessera upstreams route 'desk/*' desk": "desk",
    "tessera upstreams list": "desk",
    "tessera upstreams unroute 'desk/*'": "desk",
    "tessera upstreams remove desk": "desk",
    "tessera remote list": "",
    "tessera keys add desk": "tsr_",
    "tessera connect": "",
    "tessera connect --off": "",
    "tessera tools add --from servers.json": "clock",
    "tessera tools known": "mcp-server-time",
    "tessera tools list": "clock",
    "tessera settings set web.searxng http://192.168.1.20:8888": "",
    "tessera models alias gpt-4o MODEL": "gpt-4o means spark",
    "tessera models alias": "gpt-4o",
    "tessera models alias gpt-4o --remove": "no longer an alias",
    "tessera models du": "trash",
    "tessera jobs": "",
    "tessera cache": "4096 MiB",
    "tessera cache limit 10GB": "9536 MiB",
    "tessera settings list": "models.context",
    "tessera settings set models.context 16384": "",
    "tessera settings reset models.context": "",
    "tessera settings path": "settings.toml",
    "tessera models move-folder new-place": "new-place now",
}
# Parsed but not run: only arguments and options are checked. A pattern, and the reason.
NOT_RUN = {
    r"tessera cache clear": "asks first: unit/app/test_cache_command.py",
    r"tessera jobs (follow|cancel) JOB": "a job that runs: e2e/test_terminal_quantize.py",
    r"python3 start\.py.*": "the test run itself begins with it; unit/installers/test_start.py has its options",
    r"python -m tests\.bench\.queueing .*": "a measurement",
    r"tessera remote (add|check|remove) .*": "another computer, over SSH",
    r"tessera collections add .* --allow-remote": "another server: e2e/test_nothing_leaves.py",
    r"tessera cluster .*": "Ray, and other computers: optin/cluster.py",
    r"tessera keys add .*": "makes keys mandatory: e2e/test_tls_and_keys.py",
    r"tessera worker": "serves until it is stopped: e2e/test_workers.py",
    r"tessera mcp papers --http 8765": "serves until it is stopped: e2e/test_collections.py",
    r"tessera serve .*": "an address of the reader's; every test here uses a server",
    r"tessera phone": "makes a key for a server that others reach: e2e/test_connect.py",
    r"tessera connect http.*": "another computer: e2e/test_connect.py",
    r"tessera fit owner/name": "the hub: integration/app/test_fit_command.py",
    r"tessera models compare .*": "the hub: integration/app/test_models_command.py",
    r"tessera models pull .*": "the hub: unit/engine/library/test_hub.py",
    r"tessera (bench|autotune) .*": "a measurement: e2e/test_measuring_routes.py",
    r"tessera doctor": "ends with 1 where something is missing: unit/devices/test_doctor.py",
    r"tessera verify-device spark": "minutes, and a Vulkan device: optin/installers/clean_root.py",
    r"tessera launch \S+.*": "other programs: unit/app/code",
    r"tessera service .*": "the service manager of this user: integration/test_service.py",
    r"tessera onnx .*": "minutes, or other libraries: integration/test_onnx_fixed.py",
    r"python3 installers/build\.py .*": "a build: optin/installers",
    r"tessera quantize SOURCE .*": "minutes: e2e/test_quantize.py",
    r"tessera quantize my-model .*": "a quick test: e2e/test_quantize.py",
    r"tessera quantize owner/name .*": "the hub: unit/engine/library/test_fit_from_hub.py",
    r"tessera kernels (install|verify|rollback|remove).*": "a pack: integration/test_kernel_packs.py",
    r"tessera engine (install|use|verify|rollback|remove) ?[\d.]*": "a build: integration/test_engine_versions.py",
    r"tessera engine (add|use|remove) .*": "another program: e2e/test_added_engines.py",
    r"tessera models converter (install|remove)": "320 MB: optin/llama_cpp_door.py, e2e/test_converter_door.py",
    r"tessera models engine-args MODEL \S+=.*": "loads the model again each time: e2e/test_machine_routes.py",
    r"tessera upstreams (check|key) desk": "another server: integration/test_upstreams.py; a key is asked for",
    r"tessera tools (add (time|notes) .*|test time)": "other programs: unit/app/tools",
    r"tessera (chat|run) .*": "a conversation or an answer: e2e/test_terminal_chat.py",
}


def documented() -> list[str]:
    """The command lines of all blocks, in page order."""
    lines: list[str] = []
    for page in PAGES:
        if page.parent.name == "adr":  # records of the past
            continue
        for language, block in BLOCK.findall(page.read_text(encoding="utf-8")):
            if language not in {"", "bash", "console", "sh"}:
                continue
            for line in map(str.strip, block.replace("\\\n", " ").splitlines()):
                if line.split(" ", 1)[0] in {"tessera", "python3", "python", "ssh"}:
                    lines += alternatives(BEHIND.sub("", re.sub(r"(?<=\S) {2,}(?=--)", " ", line)).rstrip())
    return list(dict.fromkeys(lines))


def alternatives(line: str) -> list[str]:
    """`tessera collections list | show` stands for two commands; those that need a name get the page's."""
    first, *others = line.split(" | ")
    stem = first.rsplit(" ", 1)[0]
    return [first, *(f"{stem} {other} papers" for other in others)]


def parsed(line: str) -> None:
    """Parse the line with click, down to the command's own options. Raises: click.ClickException."""
    words = shlex.split(line)[1:]
    command: click.Command = cli
    context = click.Context(cli, info_name="tessera")
    while isinstance(command, click.Group) and words:
        name, *words = words
        found = command.get_command(context, name)
        assert found is not None, f"{line}: there is no command {name}"
        context = click.Context(found, info_name=name, parent=context)
        command = found
    # Files in a line need not exist: only the arguments are parsed.
    command.make_context(context.info_name, words, parent=context.parent, resilient_parsing=True)
    known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
    unknown = [word for word in words if word.startswith("--") and word.split("=")[0] not in known | {"--help"}]
    free = any(each.nargs == -1 for each in command.params)
    assert free or unknown == [], f"{line}: there is no option {unknown}"


def test_every_line_is_run_or_has_a_reason_and_no_entry_is_left_over():
    found = documented()
    assert len(found) > 40
    neither = [line for line in found if line not in RUN and not any(re.fullmatch(p, line) for p in NOT_RUN)]
    assert neither == []
    assert [line for line in RUN if line not in found] == []
    assert [p for p in NOT_RUN if not any(re.fullmatch(p, line) for line in found)] == []


@pytest.mark.parametrize("line", [line for line in documented() if line.startswith("tessera ")])
def test_it_can_be_typed(line):
    parsed(line)


def test_those_that_end_soon_do_what_they_say(tmp_path, monkeypatch):
    (tmp_path / "papers-folder").mkdir()
    (tmp_path / "papers-folder" / "lease.txt").write_text("The rent is due on the fifth day of each month.\n" * 3)
    (tmp_path / "servers.json").write_text('{"mcpServers": {"clock": {"command": "clock-server"}}}')
    home = tmp_path / "home"
    (home / "models").mkdir(parents=True)
    shutil.copyfile(ROOT / "assets" / "models" / "spark-f16.gguf", home / "models" / "mine.gguf")
    server = RunningServer(home)
    try:
        monkeypatch.setenv("TESSERA_HOME", str(home))
        monkeypatch.chdir(tmp_path)
        failed = []
        for line, seen in RUN.items():
            words = shlex.split(line)[1:]
            words = [PLACES.get(word, word) for word in words]
            result = CliRunner().invoke(cli, words, input="y\n")
            if result.exit_code != 0 or seen not in result.output:
                failed.append(f"{line}: {result.exit_code} {result.output[-500:]} {result.exception!r}")
        assert failed == []
        assert (tmp_path / "new-place" / "mine.gguf").exists()
        assert not (home / "models").exists()
        with Client(server.url, server.token, local=True) as client:
            listed = {model.id: model for model in client.library()}
        assert (listed["mine"].state, listed["mine"].path) == ("online", str(tmp_path / "new-place" / "mine.gguf"))
    finally:
        server.stop()
