import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.code.errors import FileChanged
from app.code.integrations.json_settings import parse, undo_settings, with_block, with_settings
from app.code.integrations.registry import INTEGRATIONS
from app.code.integrations.store import ConnectStore, NotConnected
from app.code.integrations.types import Endpoint, NeedsHand
from tests.support.examples import examples

URL, ABLE = "http://127.0.0.1:8017", ("chat", "tools", "fim")
ENDPOINT = Endpoint(url=URL, model="qwen3-coder", context=32768, capabilities=ABLE)
WRITERS = sorted(name for name, integration in INTEGRATIONS.items() if integration.edits)

# Content that users may already have in these files.
EXISTING = {
    "aider": {".aider.conf.yml": "# mine\nmodel: gpt-9\ndark-mode: true\n"},
    "codex": {".codex/config.toml": 'model = "gpt-9"\n\n[profiles.work]\nmodel = "x"\n'},
    "opencode": {".config/opencode/opencode.json": '{\n    "model": "other/x",\n    "theme": "dark"\n}\n'},
    "claude": {".claude/settings.json": '{"env": {"FOO": "1", "ANTHROPIC_MODEL": "mine"}, "permissions": {}}\n'},
    "continue": {
        ".continue/config.yaml": "name: Mine\nversion: 1.0.0\nmodels:\n- name: A\n  provider: x\nrules: []\n"
    },
    "llama.vscode": {".config/Code/User/settings.json": '{\n\t// my font\n\t"editor.fontSize": 13,\n}\n'},
    "zed": {".config/zed/settings.json": '// Zed\n{\n  "theme": "One", // nice\n}\n'},
    "llama.vim": {},
    "openclaw": {
        ".openclaw/openclaw.json": '{"gateway": {"port": 18789}, "agents": {"defaults": {"model": {}}}}\n'
    },
    "pi": {".pi/agent/models.json": '{"providers": {"mine": {"baseUrl": "http://x/v1"}}}\n'},
    "vscode": {},
}


@pytest.fixture
def home(tmp_path):
    home = tmp_path / "user"
    home.mkdir()
    return home


@pytest.fixture
def store(tmp_path):
    return ConnectStore(tmp_path / "state")


def files(home):
    return {str(p.relative_to(home)): p.read_text() for p in sorted(home.rglob("*")) if p.is_file()}


def without_backups(found):
    return {name: text for name, text in found.items() if not name.endswith(".tessera-backup")}


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("name", WRITERS)
def test_connecting_shows_its_change_keeps_a_backup_and_is_taken_back(name, existing, home, store):
    for path, text in EXISTING[name].items() if existing else ():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(text)
    before = files(home)
    integration = INTEGRATIONS[name]
    edits = store.planned(integration, home, ENDPOINT)
    assert files(home) == before
    assert edits
    assert all(edit.diff().count("+") > 1 for edit in edits)
    assert any(ENDPOINT.url in edit.diff() for edit in edits)
    backups = store.connect(integration, edits)
    assert sorted(b.read_text() for b in backups) == sorted(before[p] for p in before if "tessera" not in p)
    assert store.connected(name)
    written = without_backups(files(home))
    assert written != before
    assert store.planned(integration, home, ENDPOINT) == []
    store.remove(integration, store.planned_removal(integration))
    assert without_backups(files(home)) == before
    with pytest.raises(NotConnected):
        store.planned_removal(integration)


@pytest.mark.parametrize("name", WRITERS)
def test_another_model_replaces_the_first_and_removal_still_gives_back_the_original(name, home, store):
    for path, text in EXISTING[name].items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(text)
    before = files(home)
    integration = INTEGRATIONS[name]
    store.connect(integration, store.planned(integration, home, ENDPOINT))
    other = Endpoint(url="http://127.0.0.1:9000", model="devstral", context=65536)
    try:
        edits = store.planned(integration, home, other)
    except NeedsHand:
        assert name in {"zed", "llama.vscode"}
    else:
        store.connect(integration, edits)
        text = "".join(without_backups(files(home)).values())
        assert ENDPOINT.url not in text
        assert other.url in text
    store.remove(integration, store.planned_removal(integration))
    assert without_backups(files(home)) == before


@pytest.mark.parametrize("name", [n for n in WRITERS if INTEGRATIONS[n].undo])
def test_what_a_person_changed_meanwhile_stays(name, home, store):
    for path, text in EXISTING[name].items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(text)
    integration = INTEGRATIONS[name]
    store.connect(integration, store.planned(integration, home, ENDPOINT))
    for path in EXISTING[name]:
        file = home / path
        text = file.read_text()
        file.write_text(text.replace("{", '{"mine": 1, ', 1) if file.suffix == ".json" else text + "# mine too\n")
    store.remove(integration, store.planned_removal(integration))
    for path, original in EXISTING[name].items():
        text = (home / path).read_text()
        assert "mine" in text
        assert ENDPOINT.url not in text
        if path.endswith(".json"):
            assert {**parse(text)} == {"mine": 1, **parse(original)}
        else:
            assert text.startswith(original)


def test_a_file_changed_between_showing_and_writing_is_left_alone(home, store):
    integration = INTEGRATIONS["claude"]
    edits = store.planned(integration, home, ENDPOINT)
    (home / ".claude").mkdir()
    (home / ".claude" / "settings.json").write_text("{}")
    with pytest.raises(FileChanged):
        store.connect(integration, edits)
    assert files(home) == {".claude/settings.json": "{}"}
    assert not store.connected("claude")


@pytest.mark.parametrize(
    ("model", "prompt_format", "tokens"),
    [
        ("qwen2.5-coder-0.5b", "qwen", 64),
        ("my-alias", "qwen", 64),
        ("starcoder2-3b", "star_coder", 64),
        ("DeepSeek-Coder-V2-Lite-Base", "deepseek_coder", 64),
        ("codegemma-2b", "code_gemma", 64),
        ("codestral-22b", "codestral", 64),
        ("CodeLlama-7b-hf", "code_llama", 64),
        ("sweep-next-edit-0.5b", "infer", 512),
        ("zeta-2", "zeta2", 512),
        ("zeta-2.1-q4_k_m", "zeta2_1", 512),
    ],
)
def test_zed_gets_the_format_of_the_models_family(tmp_path, model, prompt_format, tokens):
    """Zed's own "infer" matches a few exact names only, and predicts nothing for others."""
    endpoint = Endpoint(url=URL, model=model, context=4096, capabilities=("fim",))
    (edit,) = INTEGRATIONS["zed"].edits(tmp_path, endpoint)
    found = json.loads(edit.after)["edit_predictions"]["open_ai_compatible_api"]
    assert (found["prompt_format"], found["max_output_tokens"]) == (prompt_format, tokens)


def test_what_each_client_reads_is_what_it_needs(home, store):
    for name in WRITERS:
        store.connect(INTEGRATIONS[name], store.planned(INTEGRATIONS[name], home, ENDPOINT))
    claude = json.loads((home / ".claude/settings.json").read_text())["env"]
    assert claude["ANTHROPIC_BASE_URL"] == ENDPOINT.url
    assert claude["CLAUDE_CODE_ATTRIBUTION_HEADER"] == "0"
    assert claude["ANTHROPIC_API_KEY"] == "", "the key for Anthropic itself stays there"
    codex = tomllib.loads((home / ".codex/config.toml").read_text())
    assert codex["model_providers"]["tessera"]["base_url"] == ENDPOINT.url + "/v1"
    assert codex["model_providers"]["tessera"]["wire_api"] == "responses"
    assert set(codex) == {"model_providers"}  # since 0.134 Codex refuses `--profile` next to a profile in this file
    profile = tomllib.loads((home / ".codex/tessera.config.toml").read_text())
    assert profile == {"model_provider": "tessera", "model": "qwen3-coder", "model_context_window": 32768}
    opencode = json.loads((home / ".config/opencode/opencode.json").read_text())
    assert opencode["provider"]["tessera"]["models"]["qwen3-coder"]["limit"]["context"] == 32768
    zed = json.loads((home / ".config/zed/settings.json").read_text())
    assert zed["language_models"]["openai_compatible"]["Tessera"]["available_models"][0]["max_tokens"] == 32768
    capabilities = zed["language_models"]["openai_compatible"]["Tessera"]["available_models"][0]["capabilities"]
    assert (capabilities["tools"], capabilities["images"]) == (True, False), "what the model can, no constants"
    assert zed["edit_predictions"]["provider"] == "open_ai_compatible_api"
    assert zed["edit_predictions"]["open_ai_compatible_api"] == {
        "api_url": f"{URL}/v1/completions",
        "model": "qwen3-coder",
        "prompt_format": "qwen",
        "max_output_tokens": 64,
    }
    pi = json.loads((home / ".pi/agent/models.json").read_text())["providers"]["tessera"]
    assert (pi["baseUrl"], pi["api"], pi["models"][0]["contextWindow"]) == (
        f"{URL}/v1",
        "openai-completions",
        32768,
    )
    claw = json.loads((home / ".openclaw/openclaw.json").read_text())
    assert claw["agents"]["defaults"]["model"]["primary"] == "tessera/qwen3-coder"
    assert claw["models"]["providers"]["tessera"]["models"][0]["input"] == ["text"]
    (code,) = json.loads((home / ".config/Code/User/chatLanguageModels.json").read_text())
    assert (code["vendor"], code["models"][0]["url"]) == ("customendpoint", f"{URL}/v1/chat/completions")
    assert (code["models"][0]["maxInputTokens"], code["models"][0]["maxOutputTokens"]) == (24576, 8192)
    aider = json.loads((home / ".aider.tessera.metadata.json").read_text())
    assert aider["openai/qwen3-coder"]["max_input_tokens"] == 32768
    assert "infill" in (home / ".vim/plugin/tessera_llama.vim").read_text()
    continue_file = (home / ".continue/config.yaml").read_text()
    assert '  - name: "Tessera qwen3-coder"' in continue_file
    assert '"autocomplete"' in continue_file
    assert not any(p.stat().st_mode & 0o077 for p in home.rglob("*") if p.is_file())


def test_codexs_profile_moves_out_of_its_main_file(home, store):
    """Earlier versions of Tessera wrote the profile into config.toml, which current versions of Codex refuse."""
    config, profile = home / ".codex/config.toml", home / ".codex/tessera.config.toml"
    config.parent.mkdir()
    config.write_text(with_block('model = "mine"\n', ["[profiles.tessera]", 'model = "x"']))
    store.connect(INTEGRATIONS["codex"], store.planned(INTEGRATIONS["codex"], home, ENDPOINT))
    assert "profiles" not in tomllib.loads(config.read_text())
    assert profile.exists()
    for path, text in ((profile, 'model = "mine"\n'), (config, '[profiles.tessera]\nmodel = "mine"\n')):
        path.write_text(text)
        with pytest.raises(NeedsHand) as caught:
            store.planned(INTEGRATIONS["codex"], home, ENDPOINT)
        assert 'model = "qwen3-coder"' in caught.value.snippet


def test_agents_are_started_without_touching_their_files(home):
    for name in ("aider", "claude", "codex", "goose", "opencode", "pi"):
        integration = INTEGRATIONS[name]
        launch = integration.launch(ENDPOINT, home / "own")
        told = " ".join([*launch.argv, *launch.env.values(), *launch.files.values()])
        assert ENDPOINT.url in told
        assert ENDPOINT.model in told
    for name in ("cline", "goose", "hermes"):
        assert "32768" in " ".join(INTEGRATIONS[name].steps(ENDPOINT).split())
    assert files(home) == {}


def test_models_of_others_stay_in_vs_codes_list(home, store):
    path = home / ".config/Code/User/chatLanguageModels.json"
    path.parent.mkdir(parents=True)
    mine = {"name": "Mine", "vendor": "ollama"}
    path.write_text(json.dumps([mine]))
    integration = INTEGRATIONS["vscode"]
    store.connect(integration, store.planned(integration, home, ENDPOINT))
    assert [group["name"] for group in json.loads(path.read_text())] == ["Mine", "Tessera"]
    more = {"name": "More", "vendor": "openrouter"}
    path.write_text(json.dumps([*json.loads(path.read_text()), more]))
    store.remove(integration, store.planned_removal(integration))
    assert json.loads(path.read_text()) == [mine, more]
    path.write_text("// mine\n[]\n")
    with pytest.raises(NeedsHand):
        store.planned(integration, home, ENDPOINT)


@pytest.mark.parametrize("text", ["[1]", "{", "not json", '{"env": 3}'])
def test_a_file_that_is_not_understood_is_left_alone_with_a_snippet(text, home, store):
    path = home / ".claude" / "settings.json"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(NeedsHand) as caught:
        store.planned(INTEGRATIONS["claude"], home, ENDPOINT)
    assert ENDPOINT.url in caught.value.snippet
    assert path.read_text() == text


def test_a_configuration_that_is_a_link_stays_one(home, store, tmp_path):
    real = tmp_path / "dotfiles.json"
    real.write_text('{"theme": "dark"}')
    (home / ".claude").mkdir()
    (home / ".claude" / "settings.json").symlink_to(real)
    store.connect(INTEGRATIONS["claude"], store.planned(INTEGRATIONS["claude"], home, ENDPOINT))
    assert (home / ".claude" / "settings.json").is_symlink()
    assert "ANTHROPIC_BASE_URL" in real.read_text()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.dictionaries(st.sampled_from("abcde"), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from("abcde"), JSON, max_size=4)
KEYS = st.dictionaries(
    st.lists(st.sampled_from("abxyz"), min_size=1, max_size=3).map(tuple), st.integers(), max_size=2
)


@pytest.mark.slow
@settings(max_examples=examples(200), deadline=None)
@given(known=OBJECTS, wanted=KEYS)
def test_settings_go_in_and_come_out_again(known, wanted):
    if any(a != b and a == b[: len(a)] for a in wanted for b in wanted):
        return
    before = json.dumps(known, indent=2) + "\n"
    try:
        after = with_settings(Path("x"), before, wanted)
    except NeedsHand:
        return
    for keys, value in wanted.items():
        found = json.loads(after)
        for key in keys:
            found = found[key]
        assert found == value
    assert json.loads(undo_settings(after, before, after)) == known


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1, // x\n "b": [1, 2,], /* { */ }', {"a": 1, "b": [1, 2]}),
        ('{"url": "http://x//y", "c": "/* no */,}"}', {"url": "http://x//y", "c": "/* no */,}"}),
        ("// only\n{}", {}),
    ],
)
def test_json_with_comments_is_read(text, value):
    assert parse(text) == value
