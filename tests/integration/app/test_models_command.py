"""`tessera models` as used by people and by scripts, against the fake hub and a separate library."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from app.cli import main as cli_main
from app.cli import models_hub
from app.client import Client
from app.client.discovery import server_here
from app.format import duration
from engine.core.errors import InputFault
from engine.library.hub.file_selection import HubName, parse_hub_name
from engine.library.recommended_models import propose, starter_repo, starters
from tests.support.fakes.fake_hub import FakeHub
from tests.support.models.onnx_models import requantize
from tests.support.servers import RunningServer

SPARK = Path("assets/models/spark-f16.gguf")
GIB = 1 << 30


@pytest.fixture(scope="module")
def _shop(tmp_path_factory):
    """A hub, and a user's server that the commands find; shared by all tests."""
    folder = tmp_path_factory.mktemp("shop")
    with pytest.MonkeyPatch.context() as patch, FakeHub() as hub:
        patch.delenv("HF_HUB_OFFLINE", raising=False)
        patch.setenv("HF_ENDPOINT", hub.endpoint)
        patch.setenv("HF_TOKEN", "")
        patch.setenv("HOME", str(folder))
        hub.add("org/Spark-GGUF", {"spark-Q4_K_M.gguf": SPARK.read_bytes()}, gguf={"total": 8_400_000})
        (folder / "home").mkdir()
        server = RunningServer(folder / "home")
        yield hub, folder / "home"
        server.stop()


@pytest.fixture
def home(_shop, monkeypatch):
    hub, found = _shop
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    monkeypatch.setenv("HF_TOKEN", "")
    monkeypatch.setenv("TESSERA_HOME", str(found))
    monkeypatch.setattr(Path, "home", lambda: found.parent)
    return found


@pytest.fixture
def hub(_shop, home):
    return _shop[0]


@pytest.fixture
def tessera(home):
    def run(*arguments, code=0, answer=None):
        result = CliRunner().invoke(cli_main.cli, ["models", *map(str, arguments)], input=answer)
        assert result.exit_code == code, result.output + repr(result.exception)
        return result.stdout

    return run


def test_the_bundled_model_is_listed_out_of_the_box(tessera):
    assert "spark " in tessera("list")
    found = json.loads(tessera("list", "--json"))["models"]
    assert [(m["id"], m["name"], m["state"]) for m in found] == [("spark", "Spark (demo)", "online")]
    assert "1,024 tokens" in tessera("show", "spark")
    assert json.loads(tessera("show", "spark", "--json"))["capabilities"] == ["completion", "chat", "fim"]


def test_search_plan_pull_verify_remove_undo(tessera, hub):
    assert json.loads(tessera("search", "spark", "--json"))["repositories"][0]["repo"] == "org/Spark-GGUF"
    assert "8.4 M" in tessera("search", "spark")
    assert "Nothing found" in tessera("search", "nothing")
    plan = json.loads(tessera("pull", "org/Spark-GGUF", "--plan", "--json"))
    assert plan["options"][0]["details"]["n_params"] == 8_392_960
    assert "Q4_K_M" in tessera("pull", "org/Spark-GGUF", "--plan")
    lines = [json.loads(line) for line in tessera("pull", "org/Spark-GGUF:q4_k_m", "--json").splitlines()]
    assert lines[-1]["model"] == "spark-q4_k_m"
    assert lines[0]["progress"]["total"] == SPARK.stat().st_size
    assert "spark-q4_k_m is ready" in tessera("pull", "org/Spark-GGUF", "--yes")
    assert json.loads(tessera("verify", "spark-q4_k_m", "--json"))["basis"] == "hub"
    assert "as the hub promised" in tessera("verify", "spark-q4_k_m")
    tessera("remove", "spark-q4_k_m", answer="n\n", code=1)
    ticket = json.loads(tessera("remove", "spark-q4_k_m", "--yes", "--json"))["ticket"]
    assert "spark-q4_k_m" not in tessera("list")
    assert ticket in tessera("remove", "--trash")
    assert "is back" in tessera("remove", "--undo", ticket)
    assert "spark-q4_k_m" in tessera("list")
    tessera("remove", "spark-q4_k_m", "--yes")
    assert json.loads(tessera("remove", "--empty-trash", "--yes", "--json"))["freed_bytes"] == SPARK.stat().st_size


def test_import_and_link(tessera, home, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/mine.gguf").write_bytes(SPARK.read_bytes())
    assert "No models of other application" in tessera("link")
    assert json.loads(tessera("link", tmp_path / "elsewhere", "--json"))["added"] == ["mine"]
    assert "no new model" in tessera("link", tmp_path / "elsewhere")
    assert json.loads(tessera("import", tmp_path / "elsewhere/mine.gguf", "--json"))["model"] in {"mine", "spark"}
    other = bytearray(SPARK.read_bytes())
    other[-1] ^= 1
    (tmp_path / "elsewhere/mine.gguf").write_bytes(other)
    assert json.loads(tessera("import", tmp_path / "elsewhere/mine.gguf", "--json"))["model"] == "mine-2"
    assert "mine-2 is shown as My model" in tessera("rename", "mine-2", "My model")
    assert json.loads(tessera("rename", "mine-2", "", "--json")) == {"model": "mine-2", "name": "mine"}
    assert "no longer listed" in tessera("remove", "mine", "--yes")
    assert (tmp_path / "elsewhere/mine.gguf").exists()


def test_without_a_server_a_private_one_copies_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("TESSERA_HOME", str(tmp_path / "alone"))
    result = CliRunner().invoke(cli_main.cli, ["models", "import", str(SPARK), "--json"])
    assert Path(json.loads(result.stdout)["path"]).read_bytes() == SPARK.read_bytes()
    assert not (tmp_path / "alone" / "state" / "server.json").exists()


def test_ctrl_c_pauses_a_download_and_the_same_command_goes_on(tessera, hub, monkeypatch):
    hub.add("org/Slow-GGUF", {"slow-Q8_0.gguf": SPARK.read_bytes()}, gguf={"total": 8_400_000})
    pressed, before = [], hub.sent_bytes

    def press(progress):
        if progress.done and not pressed:
            pressed.append(progress)
            raise KeyboardInterrupt

    hub.faults.bytes_per_s = SPARK.stat().st_size / 60
    try:
        with monkeypatch.context() as patch:
            patch.setattr(models_hub, "_json_line", press)
            tessera("pull", "org/Slow-GGUF", "--json", code=130)
    finally:
        hub.faults.bytes_per_s = 0.0
    assert 0 < hub.sent_bytes - before < SPARK.stat().st_size
    assert json.loads(tessera("pull", "org/Slow-GGUF", "--json").splitlines()[-1])["model"] == "slow-q8_0"
    with server_here(Client) as client:
        assert [j.state for j in client.jobs() if j.params.get("model") == "org/Slow-GGUF"] == ["done"]


def test_a_broken_model_is_shown_with_the_reason_and_fails_verification(tessera, home):
    (home / "models").mkdir(parents=True, exist_ok=True)
    (home / "models/bad.gguf").write_bytes(b"noise" * 9)
    assert "not a GGUF file" in tessera("list")
    tessera("list")
    good = home / "models/good.gguf"
    good.write_bytes(SPARK.read_bytes())
    tessera("verify", "good")
    stamp = good.stat()
    good.write_bytes(SPARK.read_bytes()[:-1] + b"x")
    __import__("os").utime(good, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert "does not match its checksum" in tessera("verify", "good", code=3)


@pytest.fixture
def fails(monkeypatch, capsys):
    def run(*arguments):
        """Exit code and standard error of the whole command, including the entry point."""
        monkeypatch.setattr(sys, "argv", ["tessera", "models", *arguments])
        with pytest.raises(SystemExit) as caught:
            cli_main.main()
        shown = capsys.readouterr()
        assert shown.out == ""
        assert "Traceback" not in shown.err
        return caught.value.code, shown.err

    return run


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("show", "sparkk"), 3, "Known models: spark"),
        (("pull", "no-slash"), 3, "names no repository"),
        (("pull", "org/absent"), 3, "no repository 'org/absent'"),
        (("pull", "org/Spark-GGUF:Q9"), 3, "It offers: Q4_K_M"),
        (("import", "/nowhere.gguf"), 3, "No such file"),
        (("link", "/nowhere"), 3, "does not exist"),
        (("remove",), 2, "Which model"),
        (("remove", "--undo", "../x"), 3, "is not in the trash"),
    ],
)
def test_errors_say_what_to_do_and_show_no_traceback(arguments, code, words, hub, fails):
    found, shown = fails(*arguments)
    assert found == code
    assert words in shown


def test_an_unreachable_hub_is_an_environment_error(home, fails, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    code, shown = fails("search", "x")
    assert code == 4
    assert "127.0.0.1:9 cannot be reached" in shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/name", HubName("org/name")),
        ("org/name:Q4_K_M", HubName("org/name", "Q4_K_M")),
        ("org/name/dir/f.gguf", HubName("org/name", file="dir/f.gguf")),
        ("hf.co/org/name:Q8_0", HubName("org/name", "Q8_0")),
        ("https://huggingface.co/org/name", HubName("org/name")),
        ("https://huggingface.co/org/name/tree/dev", HubName("org/name", revision="dev")),
        (
            "https://huggingface.co/org/name/resolve/main/a%20b.gguf?download=true",
            HubName("org/name", file="a b.gguf", revision="main"),
        ),
    ],
)
def test_what_may_be_written_for_a_model(text, expected):
    assert parse_hub_name(text) == expected


@pytest.mark.parametrize("text", ["", "name", "a/b:c:d", "https://huggingface.co", "a b/c"])
def test_what_names_nothing(text):
    with pytest.raises(InputFault):
        parse_hub_name(text)


def test_three_starters_are_proposed_and_fit(tessera):
    assert {s.job for s in starters()} == {"tiny", "chat", "coding", "fim", "edit", "embedding", "rerank", "vision"}
    assert [(p.want, p.starter.id) for p in propose(64 * GIB)] == [
        ("fast", "qwen3.5-2b"),
        ("balanced", "qwen3.6-35b-a3b"),
        ("pictures", "gemma-4-26b-a4b"),
    ]
    assert [p.starter.id for p in propose(16 * GIB)] == ["qwen3.5-2b", "qwen3.5-9b", "gemma-4-e4b"]
    slow = {"qwen3.5-9b": 3.0, "qwen3-8b": 4.0, "gemma-4-e4b": 4.0}
    speeds = {s.bytes_per_token: slow.get(s.id, 9.0) for s in starters()}
    found = propose(16 * GIB, lambda read: speeds[read])
    assert [p.starter.id for p in found] == ["qwen3.5-2b", "qwen3.5-4b", "gemma-4-e2b"], "slower than one reads"
    assert all(s.source.startswith("https://huggingface.co/") and s.source.count("/") == 4 for s in starters())
    assert [p.starter.id for p in propose(8 * GIB)][:2] == ["qwen3.5-2b", "qwen3.5-4b"]
    for memory in (2, 4, 8, 16, 32, 64, 128):
        found = propose(memory * GIB)
        assert len(found) == 3
        assert len({p.starter.id for p in found}) == 3
        assert all(p.starter.expected_bytes <= memory * GIB and p.reason for p in found)
    assert propose(100) == ()
    assert starter_repo("Qwen3-8B") == "Qwen/Qwen3-8B-GGUF"
    assert starter_repo("nothing") is None
    assert len(json.loads(tessera("starters", "--json"))["proposals"]) == 3
    assert "tessera models pull" in tessera("starters")


def test_durations():
    seconds = (0, 4, 59.4, 59.6, 600, 3_590, 11_100, 7_199, None)
    words = ["1 s", "4 s", "59 s", "1 min", "10 min", "1 h 0 min", "3 h 5 min", "2 h 0 min", ""]
    assert [duration(s) for s in seconds] == words


def test_uploads_are_compared_without_a_download(tessera, hub, tmp_path):
    small = requantize(SPARK, tmp_path / "q4.gguf", "Q4_0").read_bytes()
    hub.add("org/Uploads", {"spark-F16.gguf": SPARK.read_bytes(), "spark-Q4_0.gguf": small})
    shown = tessera("compare", "org/Uploads")
    assert "org/Uploads:Q4_0" in shown
    assert "compared with org/Uploads:F16" in shown
    found = json.loads(tessera("compare", "org/Uploads:Q4_0", "--json"))
    assert found["fetched_bytes"] == 0  # the result is stored
    assert found["uploads"][0]["low"] < found["uploads"][0]["kld"] < found["uploads"][0]["high"]
    refused = CliRunner().invoke(cli_main.cli, ["models", "compare", "org/Spark-GGUF"])
    assert refused.exit_code != 0
