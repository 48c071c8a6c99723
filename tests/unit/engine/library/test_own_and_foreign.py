"""Linking, importing, verifying, removing and undoing."""

import hashlib
import json
import shutil
import sys
from pathlib import Path

import pytest

from engine.core.errors import BadModelFile, Cancelled, InputFault, OutOfResources
from engine.jobs.jobs import JobContext
from engine.library import catalogue as catalogue_module
from engine.library import importing, other_apps
from engine.library.errors import CannotWrite, NotEnoughDisk
from engine.library.trash import TICKET, Trash
from engine.library.types import Unlinked
from engine.library.work import verify
from tests.support.starved import no_descriptors

SPARK_HF = Path("tests/data/spark-hf")


@pytest.fixture
def other_home(tmp_path, monkeypatch):
    """A home folder in which other applications keep models."""
    home = tmp_path / "person"
    home.mkdir()
    monkeypatch.setattr(Path, "home", lambda: home)
    for name in ("OLLAMA_MODELS", "LLAMA_CACHE", "HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    return home


def write(path, raw):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)
    return path


def ollama_store(root, gguf, name="library/llama3.2/3b"):
    raw = gguf(numbers={"llama.context_length": 7})
    digest = hashlib.sha256(raw).hexdigest()
    write(root / "blobs" / f"sha256-{digest}", raw)
    projector = gguf("clip")
    other = hashlib.sha256(projector).hexdigest()
    write(root / "blobs" / f"sha256-{other}", projector)
    layers = [
        {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}", "size": len(raw)},
        {"mediaType": "application/vnd.ollama.image.projector", "digest": f"sha256:{other}"},
        {"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:" + "0" * 64},
    ]
    manifest = json.dumps({"schemaVersion": 2, "layers": layers}).encode()
    write(root / "manifests" / "registry.ollama.ai" / name, manifest)
    return root / "blobs" / f"sha256-{digest}"


def test_models_of_other_applications_are_found_and_used_in_place(catalogue, other_home, gguf):
    write(other_home / ".lmstudio/models/org/repo/Studio-Q4_K_M.gguf", gguf())
    write(other_home / ".cache/llama.cpp/org_cached.gguf", gguf())
    write(other_home / ".local/share/Jan/data/llamacpp/models/jan-nano/model.gguf", gguf())
    blob = ollama_store(other_home / ".ollama/models", gguf)
    hub = other_home / ".cache/huggingface/hub/models--Org--Cached-GGUF"
    stored = write(hub / "blobs/abc", gguf())
    for commit in ("c1", "c2"):
        (hub / "snapshots" / commit).mkdir(parents=True)
        (hub / "snapshots" / commit / "cached-Q8_0.gguf").symlink_to(stored)
    assert {f.app for f in other_apps.present()} == set(other_apps.APPS)
    for app in other_apps.APPS:
        importing.link(catalogue, app)
    found = {e.id: e for e in catalogue.entries() if e.origin.kind == "linked"}
    assert {i: e.origin.app for i, e in found.items()} == {
        "studio-q4_k_m": "lmstudio",
        "org_cached": "llama.cpp",
        "jan-nano": "jan",
        "llama3.2-3b": "ollama",
        "cached-q8_0": "huggingface",
    }
    assert found["cached-q8_0"].origin.repo == "Org/Cached-GGUF"
    ollama = catalogue.get("llama3.2:3b")
    assert (ollama.path, ollama.context_train, ollama.projector is not None) == (blob, 7, True)
    assert verify(catalogue, ollama, JobContext()).basis == "owner"
    assert catalogue.refresh().added == ()


@pytest.mark.parametrize(
    "manifest",
    [b"", b"[]", b'{"layers": 1}', b"{" * 100_000, b'{"layers": "\xe5"}',
     b'{"layers":[{"mediaType":"application/vnd.ollama.image.model","digest":"sha256:../../../etc/passwd"}]}'],
    ids=["empty", "array", "layers a number", "deep", "no UTF-8", "a digest that leads elsewhere"],
)  # fmt: skip
def test_hostile_ollama_manifests(manifest, catalogue, other_home, gguf):
    root = other_home / ".ollama/models"
    ollama_store(root, gguf)
    write(root / "manifests/registry.ollama.ai/library/evil/latest", manifest)
    importing.link(catalogue, "ollama")
    assert [e.name for e in catalogue.entries()] == ["llama3.2:3b", "Spark (demo)"]


def test_where_other_systems_keep_them():
    home = Path("/home/p")
    windows = {
        f.path.as_posix() for f in other_apps.candidates(home, {"LOCALAPPDATA": "/l", "APPDATA": "/r"}, "win32")
    }
    assert {"/l/llama.cpp", "/r/Jan/data/llamacpp/models", "/home/p/.ollama/models"} <= windows
    mac = {str(f.path) for f in other_apps.candidates(home, {}, "darwin")}
    assert {
        "/home/p/Library/Caches/llama.cpp",
        "/home/p/Library/Application Support/Jan/data/llamacpp/models",
    } <= mac
    given = {"OLLAMA_MODELS": "/o", "LLAMA_CACHE": "/c", "HF_HUB_CACHE": "/h", "XDG_CACHE_HOME": "/x"}
    assert {"/o", "/c", "/h", "/x/llama.cpp"} <= {str(f.path) for f in other_apps.candidates(home, given, "linux")}


def test_linking_what_is_not_there(catalogue, other_home, tmp_path):
    with pytest.raises(InputFault, match="no folder of jan"):
        importing.link(catalogue, "jan")
    with pytest.raises(InputFault, match="does not exist"):
        importing.link(catalogue, str(tmp_path / "absent"))


def test_unlinking_forgets_what_no_other_scanned_folder_has(catalogue, other_home, tmp_path, gguf):
    outer = tmp_path / "drive"
    write(outer / "top.gguf", gguf())
    write(outer / "inner" / "deep.gguf", gguf(tensors=[("a", (8,))]))
    write(outer / "drive2.gguf", gguf(tensors=[("b", (8,))]))
    write(tmp_path / "drive2" / "neighbour.gguf", gguf(tensors=[("c", (8,))]))
    ollama_store(other_home / ".ollama/models", gguf)
    for where in (outer, outer / "inner", tmp_path / "drive2", "ollama"):
        importing.link(catalogue, str(where))
    top = catalogue.get("top")
    Trash(catalogue).remove(top)
    catalogue.rename("deep", "My model")

    def ids():
        catalogue.refresh()
        return {entry.id for entry in catalogue.entries() if entry.origin.kind == "linked"}

    assert {folder.path: folder.models for folder in importing.linked_folders(catalogue)} == {
        str(outer): 2,
        str(outer / "inner"): 1,
        str(tmp_path / "drive2"): 1,
        str(other_home / ".ollama/models"): 1,
    }
    with pytest.raises(InputFault, match="is not linked; these folders are: "):
        importing.unlink(catalogue, str(tmp_path))
    assert importing.unlink(catalogue, f"{outer}/") == Unlinked(folders=(str(outer),), removed=("drive2",))
    assert ids() == {"deep", "neighbour", "llama3.2-3b"}
    assert catalogue.get("deep").name == "My model"
    assert importing.unlink(catalogue, "ollama").removed == ("llama3.2-3b",)
    importing.unlink(catalogue, str(outer / "inner"))
    importing.unlink(catalogue, str(tmp_path / "drive2"))
    assert ids() == set()
    with pytest.raises(InputFault, match="no folder is linked"):
        importing.unlink(catalogue, "ollama")
    importing.link(catalogue, str(outer))
    assert ids() == {"top", "deep", "drive2"}, "also what was removed before"


def test_a_linked_folder_around_the_own_one_takes_nothing_of_it(catalogue, tmp_path, gguf):
    write(catalogue.paths.models / "own.gguf", gguf())
    around = catalogue.paths.models.parent
    importing.link(catalogue, str(around))
    assert importing.unlink(catalogue, str(around)).removed == ()
    assert catalogue.get("own").state == "online"


def test_import_copies_and_the_original_may_go(catalogue, tmp_path, gguf):
    source = write(tmp_path / "My Model.gguf", gguf())
    seen = []
    entry = importing.import_copy(catalogue, source, JobContext(seen.append))
    assert (entry.id, entry.origin.kind) == ("my-model", "file")
    assert entry.path == catalogue.paths.models / "local/My Model/My Model.gguf"
    assert seen[-1].done == seen[-1].total == source.stat().st_size
    source.unlink()
    assert catalogue.get("my-model").state == "online"
    catalogue.refresh()
    assert catalogue.get("my-model").origin.kind == "file"


def test_import_of_a_folder_and_of_a_split_model(catalogue, tmp_path, gguf):
    entry = importing.import_copy(catalogue, SPARK_HF, JobContext())
    assert (entry.id, entry.format) == ("spark-hf", "safetensors")
    assert {p.name for p in entry.path.iterdir()} >= {"config.json", "tokenizer.json", "model.safetensors"}
    first = write(tmp_path / "s-00001-of-00002.gguf", gguf(tensors=[("a", (8,))], split=(0, 2)))
    write(tmp_path / "s-00002-of-00002.gguf", gguf(tensors=[("b", (8,))], split=(1, 2)))
    assert len(importing.import_copy(catalogue, first, JobContext()).files) == 2


def test_the_same_content_is_not_copied_again(catalogue, tmp_path, gguf):
    """Under another name, in parts and as a folder. One byte makes it a different model, as does a linked one."""
    first = write(tmp_path / "one.gguf", gguf())
    ours = importing.import_copy(catalogue, first, JobContext())
    again = write(tmp_path / "Another Name.gguf", first.read_bytes())
    assert importing.import_copy(catalogue, again, JobContext()).id == ours.id
    other = write(tmp_path / "other.gguf", first.read_bytes()[:-1] + b"\1")
    assert importing.import_copy(catalogue, other, JobContext()).id == "other"
    part = write(tmp_path / "s-00001-of-00002.gguf", gguf(tensors=[("a", (8,))], split=(0, 2)))
    write(tmp_path / "s-00002-of-00002.gguf", gguf(tensors=[("b", (8,))], split=(1, 2)))
    assert (
        importing.import_copy(catalogue, part, JobContext()).id
        == importing.import_copy(catalogue, part, JobContext()).id
    )
    folder = importing.import_copy(catalogue, SPARK_HF, JobContext())
    changed = tmp_path / "spark-hf"
    shutil.copytree(SPARK_HF, changed)
    assert importing.import_copy(catalogue, changed, JobContext()).id == folder.id
    (changed / "config.json").write_text((changed / "config.json").read_text() + " ")
    assert importing.import_copy(catalogue, changed, JobContext()).id != folder.id
    linked = catalogue.add(write(tmp_path / "linked.gguf", gguf(tensors=[("c", (8,))])))
    assert importing.import_copy(catalogue, linked.path, JobContext()).id != linked.id


@pytest.mark.skipif(sys.platform == "win32", reason="making links needs a privilege there")
def test_import_copies_no_file_that_a_link_of_the_folder_leads_to(catalogue, tmp_path):
    source = tmp_path / "hostile"
    shutil.copytree(SPARK_HF, source)
    secret = write(tmp_path / "secret.txt", b"token\n")
    (source / "notes.txt").symlink_to(secret)
    (source / "loop.json").symlink_to("/proc/self/environ")
    (source / "own.txt").symlink_to(source / "config.json")
    (tmp_path / "outside").mkdir()
    write(tmp_path / "outside" / "config.json", b'{"auths": "token"}')
    (source / "1_Pooling").symlink_to(tmp_path / "outside")
    (source / "weights.bin").write_bytes(b"\x80\x04pickle")
    entry = importing.import_copy(catalogue, source, JobContext())
    names = {p.name for p in entry.path.iterdir()}
    assert not names & {"notes.txt", "loop.json", "weights.bin", "1_Pooling"}
    assert names >= {"config.json", "own.txt"}
    (source / "model.safetensors").rename(tmp_path / "model.safetensors")
    (source / "model.safetensors").symlink_to(tmp_path / "model.safetensors")
    with pytest.raises(BadModelFile, match="leads out"):
        importing.import_copy(catalogue, source, JobContext())


def test_an_imported_folder_cannot_state_its_origin(catalogue, tmp_path):
    """The note of a download has the origin, and the hashes that a model is verified with."""
    source = tmp_path / "hostile"
    shutil.copytree(SPARK_HF, source)
    note = {"repo": "org/other", "revision": "c" * 40, "endpoint": "https://huggingface.co", "sha256": {}}
    (source / ".tessera.json").write_text(json.dumps(note))
    importing.import_copy(catalogue, source, JobContext())
    catalogue.close()
    for file in catalogue.paths.state.glob("library.db*"):
        file.unlink()
    again = catalogue_module.Catalogue(catalogue.paths)
    assert (again.get("hostile").origin.kind, again.get("hostile").origin.repo) == ("file", None)
    again.close()


def test_import_refuses_and_leaves_nothing(catalogue, tmp_path, gguf, monkeypatch):
    noise = write(tmp_path / "noise.gguf", b"noise" * 100)
    pickle = write(tmp_path / "pytorch_model.bin", b"\x80\x02")
    for bad, words in ((noise, "not a GGUF"), (pickle, "run code"), (tmp_path / "absent.gguf", "No such file")):
        with pytest.raises(BadModelFile, match=words):
            importing.import_copy(catalogue, bad, JobContext())
    good = write(tmp_path / "good.gguf", gguf())
    control = JobContext()
    control.ask("cancelled")
    with pytest.raises(Cancelled):
        importing.import_copy(catalogue, good, control)
    usage = type("usage", (), {"free": 100})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(NotEnoughDisk):
        importing.import_copy(catalogue, good, JobContext())
    assert [p for p in catalogue.paths.models.rglob("*") if p.is_file()] == []


def test_a_model_is_not_blamed_for_a_system_without_descriptors(catalogue, tmp_path, gguf):
    good = write(tmp_path / "good.gguf", gguf())
    for take in (lambda: importing.import_copy(catalogue, good, JobContext()), lambda: catalogue.add(good)):
        with no_descriptors(), pytest.raises(OutOfResources, match="file descriptors"):
            take()


def test_a_model_found_in_a_moment_without_descriptors_is_looked_at_again(catalogue, put, gguf, monkeypatch):
    put("late.gguf", gguf())
    reader = catalogue_module.inspect_gguf

    def starved(path):
        with no_descriptors():
            return reader(path)

    monkeypatch.setitem(catalogue_module._READERS, "gguf", starved)
    assert catalogue.refresh().added == ()
    assert catalogue.get("late") is None
    monkeypatch.setitem(catalogue_module._READERS, "gguf", reader)
    assert catalogue.refresh().added == ("late",)
    assert catalogue.get("late").state == "online"


def test_a_big_file_can_be_cancelled_while_it_is_hashed(catalogue, tmp_path, gguf):
    raw = gguf(tensors=[("t", (10_000_000,))])
    entry = catalogue.add(write(tmp_path / "big.gguf", raw))
    control = JobContext()
    seen = []

    def watch(progress):
        seen.append(progress.done)
        if len(seen) == 3:
            control.ask("cancelled")

    control._on_progress = watch
    with pytest.raises(Cancelled):
        verify(catalogue, entry, control)
    assert len(seen) == 3
    assert 0 < seen[-1] < len(raw)


def test_verify_remembers_and_notices_a_flipped_bit(catalogue, put, gguf):
    path = put("m.gguf", gguf(tensors=[("t", (1000,))]))
    catalogue.refresh()
    first = verify(catalogue, catalogue.get("m"), JobContext())
    assert (first.ok, first.basis) == (True, "none")
    assert first.files[0].sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert catalogue.get("m").files[0].sha256 == first.files[0].sha256
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    stamp = path.stat()
    path.write_bytes(raw)
    __import__("os").utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    second = verify(catalogue, catalogue.get("m"), JobContext())
    assert (second.ok, second.basis) == (False, "earlier")
    assert "does not match its checksum" in second.files[0].problem
    path.unlink()
    assert not verify(catalogue, catalogue.get("m"), JobContext()).ok


def test_removing_is_undoable_until_the_trash_is_emptied(catalogue, put, gguf):
    path = put("dir/m.gguf", gguf())
    catalogue.refresh()
    trash = Trash(catalogue)
    before = catalogue.get("m")
    removed = trash.remove(before)
    assert not path.parent.exists()  # no empty folder is left either
    assert catalogue.paths.models.is_dir()
    catalogue.refresh()
    assert catalogue.get("m") is None
    assert [(r.ticket, r.freed_bytes) for r in trash.contents()] == [(removed.ticket, before.size_bytes)]
    assert trash.restore(removed.ticket).id == "m"
    assert catalogue.get("m") == before
    assert trash.contents() == ()
    trash.remove(catalogue.get("m"))
    assert trash.empty() == before.size_bytes
    for ticket in (removed.ticket, "../m", ".", "a/b", ""):
        with pytest.raises(InputFault):
            trash.restore(ticket)


def test_a_removed_model_comes_back_beside_one_that_took_its_name(catalogue, put, gguf):
    first = put("first/m.gguf", gguf())
    catalogue.refresh()
    trash = Trash(catalogue)
    ticket = trash.remove(catalogue.get("m")).ticket
    put("second/m.gguf", gguf(numbers={"llama.context_length": 9}))
    catalogue.refresh()
    assert catalogue.get("m").path != first
    restored = trash.restore(ticket)
    assert restored.id == "m-2"
    assert catalogue.get("m-2").path == first
    assert first.exists()
    assert catalogue.get("m").path != first
    assert trash.contents() == ()


@pytest.mark.parametrize(
    "moved",
    [
        {"0-m.gguf": "{parent}/victim"},
        {"0-m.gguf": "{models}/../victim"},
        {"0-m.gguf": "{models}/out/victim"},
        {"0-m.gguf": "victim"},
        {"{parent}/victim": "{models}/m.gguf"},
        {"../../../victim": "{models}/m.gguf"},
    ],
    ids=str,
)
def test_a_strangers_ticket_moves_nothing_out_of_the_models_folder_or_into_it(catalogue, put, gguf, moved):
    models, parent = catalogue.paths.models, catalogue.paths.models.parent
    victim = write(parent / "victim", b"mine")
    (parent / "outside").mkdir()
    (models / "out").symlink_to(parent / "outside")
    path = put("m.gguf", gguf())
    catalogue.refresh()
    trash = Trash(catalogue)
    ticket = trash.remove(catalogue.get("m")).ticket
    record = models / ".trash" / ticket / TICKET
    names = {"models": models, "parent": parent}
    stated = json.loads(record.read_bytes())
    stated["moved"] = {name.format(**names): to.format(**names) for name, to in moved.items()}
    record.write_text(json.dumps(stated))
    with pytest.raises(CannotWrite):
        trash.restore(ticket)
    assert victim.read_bytes() == b"mine"
    assert not path.exists()
    assert not list((parent / "outside").iterdir())


def test_a_removed_model_does_not_replace_a_file_that_came_meanwhile(catalogue, put, gguf):
    put("m.gguf", gguf())
    catalogue.refresh()
    trash = Trash(catalogue)
    ticket = trash.remove(catalogue.get("m")).ticket
    newer = gguf(numbers={"llama.context_length": 9})
    path = put("m.gguf", newer)
    with pytest.raises(CannotWrite, match="another file is there"):
        trash.restore(ticket)
    assert path.read_bytes() == newer
    path.unlink()
    assert trash.restore(ticket).id == "m"


def test_a_linked_file_is_never_deleted(catalogue, tmp_path, gguf):
    path = write(tmp_path / "drive/linked.gguf", gguf())
    importing.link(catalogue, str(path.parent))
    link = catalogue.paths.models / "shortcut.gguf"
    link.symlink_to(path)
    catalogue.refresh()
    trash = Trash(catalogue)
    tickets = [trash.remove(catalogue.get(name)).ticket for name in ("linked", "shortcut", "spark")]
    assert path.exists()
    assert link.exists()
    catalogue.refresh()
    assert catalogue.entries() == ()
    trash.empty()
    assert path.exists()
    with pytest.raises(InputFault):
        trash.restore(tickets[0])


def test_a_model_forgotten_while_its_file_was_away_is_found_when_it_is_back(catalogue, put, gguf):
    path = put("m.gguf", gguf())
    catalogue.refresh()
    path.unlink()
    Trash(catalogue).remove(catalogue.get("m"))
    catalogue.refresh()
    assert catalogue.get("m") is None
    put("m.gguf", gguf())
    assert catalogue.refresh().added == ("m",)
    assert catalogue.get("m").state == "online"


def test_folders_go_to_the_trash_as_a_whole(catalogue):
    folder = catalogue.paths.models / "spark-hf"
    shutil.copytree(SPARK_HF, folder)
    catalogue.refresh()
    trash = Trash(catalogue)
    ticket = trash.remove(catalogue.get("spark-hf")).ticket
    assert not folder.exists()
    trash.restore(ticket)
    assert (folder / "tokenizer.json").exists()
    assert catalogue.get("spark-hf").state == "online"


def test_a_removal_that_fails_half_way_is_taken_back(catalogue, put, gguf, monkeypatch):
    first = put("s-00001-of-00002.gguf", gguf(tensors=[("a", (8,))], split=(0, 2)))
    second = put("s-00002-of-00002.gguf", gguf(tensors=[("b", (8,))], split=(1, 2)))
    catalogue.refresh()
    real = Path.rename

    def rename(self, target):
        if self == second:
            raise PermissionError(13, "Permission denied")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(CannotWrite):
        Trash(catalogue).remove(catalogue.get("s"))
    assert first.exists()
    assert catalogue.get("s").state == "online"
