"""State files that several programs change concurrently: no acknowledged change is lost."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from app.settings import load, save
from app.tools.consent import ConsentStore, StoredDecision
from app.tools.mcp_config import McpServerConfig, ServerList
from devices.llama_cpp_versions.store import VersionStore
from engine.core.keys import KeyStore
from engine.core.program_keys import ProgramKeys
from engine.documents.collection_config import Definitions
from engine.job_kinds.bench.qtype_speed import PriceStore
from engine.jobs.job_types import JobKind
from engine.jobs.jobs import JobRegistry
from engine.placement.history import PlacementHistory
from engine.placement.measurements import TypePrices
from engine.placement.model_settings import ModelSettingsStore
from engine.placement.types import LoadOptions
from engine.remotes.registry import RemoteRegistry
from engine.remotes.types import Remote
from engine.runner.engine_args import EngineArgs
from engine.upstreams.keys import UpstreamKeys
from engine.upstreams.registry import UpstreamRegistry
from engine.upstreams.types import Health, Rule, UpstreamModel
from tests.support.fakes.scripted import ScriptedServer, home_paths

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    running = ScriptedServer(tmp_path_factory.mktemp("at-once"))
    yield running
    running.stop()


def test_files_sent_and_deleted_at_once_are_all_there_and_all_gone(server):
    with httpx2.Client(base_url=server.url, timeout=60) as http, ThreadPoolExecutor(16) as pool:

        def send(number):
            file = {"file": (f"{number}.txt", f"text {number}".encode(), "text/plain")}
            return http.post("/v1/files", files=file, data={"purpose": "assistants"}).json()["id"]

        ids = list(pool.map(send, range(40)))
        assert {row["id"] for row in http.get("/v1/files").json()["data"]} == set(ids)
        assert list(pool.map(lambda i: http.get(f"/v1/files/{i}/content").text, ids)) == [
            f"text {number}" for number in range(40)
        ]
        gone = list(pool.map(lambda i: http.delete(f"/v1/files/{i}").json()["deleted"], ids[:20]))
        assert gone == [True] * 20
        assert {row["id"] for row in http.get("/v1/files").json()["data"]} == set(ids[20:])
        folders = {path.name for path in (server.state.paths.state / "files").iterdir()}
        assert folders == set(ids[20:])


REMOVES = """
import sys
from pathlib import Path
from engine.core.keys import KeyStore
store = KeyStore(Path(sys.argv[1]))
for line in sys.stdin:
    store.remove(line.strip())
    print("gone", flush=True)
"""


def test_a_key_that_the_terminal_revokes_stays_revoked_while_the_server_makes_others(tmp_path):
    file = tmp_path / "keys.json"
    store, made = KeyStore(file), {}
    made = {f"old {n}": store.add(f"old {n}", ("chat",)) for n in range(40)}
    terminal = subprocess.Popen(
        [sys.executable, "-c", REMOVES, str(file)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    done = threading.Event()

    def make():
        for n in range(400):
            if done.is_set():
                return
            made[f"new {n}"] = store.add(f"new {n}", ("chat",))

    maker = threading.Thread(target=make)
    try:
        maker.start()
        for n in range(40):
            terminal.stdin.write(f"old {n}\n")
            terminal.stdin.flush()
            assert terminal.stdout.readline() == "gone\n"
    finally:
        done.set()
        maker.join(60)
        terminal.stdin.close()
        terminal.wait(60)
        terminal.stdout.close()
    for name, key in made.items():
        assert (store.scopes(key) is None) == name.startswith("old"), name


def prices(number):
    return TypePrices(machine_key=f"m{number}", devices=(), threads=1, ns_per_weight={}, measured_at=1.0)


# Each entry: a store for a folder, a change with a number, and the expected result.
STORES = {
    "aliases": (
        lambda at: ModelSettingsStore(at / "f"),
        lambda s, n: s.set_alias(f"a{n}", "m"),
        lambda s, n: f"a{n}" in s.aliases(),
    ),
    "drafts": (
        lambda at: ModelSettingsStore(at / "f"),
        lambda s, n: s.change(f"a{n}", draft="m"),
        lambda s, n: s.get(f"a{n}").draft,
    ),
    "sampling": (
        lambda at: ModelSettingsStore(at / "f"),
        lambda s, n: s.set_sampling(f"a{n}", {"top_k": 3}),
        lambda s, n: s.get(f"a{n}").sampling,
    ),
    "engine args": (
        lambda at: ModelSettingsStore(at / "f"),
        lambda s, n: s.change(f"a{n}", engine_args=EngineArgs(repack=False)),
        lambda s, n: s.get(f"a{n}").engine_args.repack is False,
    ),
    "load settings": (
        lambda at: ModelSettingsStore(at / "f"),
        lambda s, n: s.set_load(f"a{n}", LoadOptions(n_ctx=512)),
        lambda s, n: s.get(f"a{n}").n_ctx == 512,
    ),
    "upstreams": (
        UpstreamRegistry,
        lambda s, n: (
            s.add(f"a{n}", "http://127.0.0.1:1"),
            s.saw(f"a{n}", Health(state="ok", models=(UpstreamModel(name="m"),))),
            s.add_rule(Rule(model=f"a{n}/*", upstream=f"a{n}")),
        ),
        lambda s, n: s.allows(f"a{n}/m") and s.saved.models[f"a{n}"],
    ),
    "upstream keys": (
        lambda at: UpstreamKeys(at / "f"),
        lambda s, n: s.put(f"a{n}", "key"),
        lambda s, n: s.get(f"a{n}"),
    ),
    "remotes": (
        lambda at: RemoteRegistry(at / "f"),
        lambda s, n: s.put(Remote(name=f"a{n}", host="h", user="u", host_key="k")) if n < 16 else None,
        lambda s, n: n >= 16 or s.get(f"a{n}"),
    ),
    "consents": (
        lambda at: ConsentStore(home_paths(at)),
        lambda s, n: s.keep(f"a{n}", StoredDecision("always", "x")),
        lambda s, n: s.find(f"a{n}"),
    ),
    "collections": (lambda at: Definitions(at / "f"), lambda s, n: s.add(f"a{n}"), lambda s, n: s.get(f"a{n}")),
    "program keys": (lambda at: ProgramKeys(at / "f"), lambda s, n: s.make(f"a{n}"), lambda s, n: s.key(f"a{n}")),
    "prices": (
        lambda at: PriceStore(at / "f"),
        lambda s, n: s.put(prices(n)),
        lambda s, n: s.newest(f"m{n}", gpu=False),
    ),
    "pins": (
        lambda at: ModelSettingsStore(at / "f"),
        lambda s, n: s.change(f"a{n}", device="cpu"),
        lambda s, n: s.get(f"a{n}").device,
    ),
    "fallbacks that worked": (
        lambda at: PlacementHistory(at / "f"),
        lambda s, n: s.remember(f"a{n}", {"repack": False}),
        lambda s, n: s.remembered(f"a{n}"),
    ),
    "tool servers": (
        lambda at: ServerList(home_paths(at)),
        lambda s, n: s.add([McpServerConfig(name=f"a{n}", argv=("x",))]),
        lambda s, n: any(server.name == f"a{n}" for server in s.read()),
    ),
    "engine versions": (
        VersionStore,
        lambda s, n: s.use(None, f"a{n}"),
        lambda s, n: f"a{n}" in s.state().models,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STORES)
def test_two_programs_change_a_state_file_at_once(name, tmp_path, monkeypatch):
    """Two stores with the same file behave like two processes: they share nothing but the file."""
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")
    made, change, there = STORES[name]
    stores = [made(tmp_path), made(tmp_path)]
    start = threading.Barrier(2)

    def work(number):
        start.wait(60)
        for n in range(number, 24, 2):
            change(stores[number], n)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, range(2)))
    fresh = made(tmp_path)
    assert [n for n in range(24) if not there(fresh, n)] == []


def test_the_window_writes_only_the_settings_that_it_changed(tmp_path):
    file = tmp_path / "settings.toml"
    window, terminal = load(file, {}), load(file, {})
    window = window.changed("server.port", 18601)
    save(window, file, {"server.port"})
    save(terminal.changed("chat.titles", value=False), file, {"chat.titles"})
    save(window.changed("chat.fold", value=False), file, {"chat.fold"})
    now = load(file, {})
    assert (now["server.port"], now["chat.titles"], now["chat.fold"]) == (18601, False, False)


def test_two_servers_of_one_home_keep_the_jobs_of_both(tmp_path):
    file = tmp_path / "jobs.json"
    one, two = JobRegistry(file), JobRegistry(file)
    for registry in (one, two):
        registry.register(JobKind.VERIFY, lambda params, control: {})
    try:
        ids = [registry.start(JobKind.VERIFY, f"job {n}", {}).id for n, registry in enumerate((one, two, one))]
        for registry, job_id in zip((one, two, one), ids, strict=True):
            assert registry.wait(job_id, 60).state == "done"
        assert {job.id for job in JobRegistry(file).jobs()} == set(ids)
        assert {job.state for job in JobRegistry(file).jobs()} == {"done"}
    finally:
        one.close()
        two.close()
