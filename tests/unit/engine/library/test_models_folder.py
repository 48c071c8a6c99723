"""Moving the models folder: nothing is lost, whenever the program ends."""

import os
import shutil
from pathlib import Path

import msgspec
import pytest

from engine.core.errors import Cancelled, InputFault, fact_of
from engine.jobs.jobs import JobContext, Paused
from engine.library import models_folder
from engine.library.catalogue import Catalogue
from engine.library.errors import CannotWrite, NotEnoughDisk
from engine.library.models_folder import MoveTask, Switch, check, move
from engine.library.scan import group
from engine.library.trash import Trash
from engine.library.types import ModelFile


class Killed(BaseException):
    """The process ends at this point."""


class Stops(JobContext):
    """A job context that calls a function at its n-th report or check."""

    def __init__(self, at, act):
        super().__init__()
        self.left, self.act = at, act

    def _count(self):
        self.left -= 1
        if self.left == 0:
            self.act(self)

    def check(self):
        self._count()
        super().check()

    def report(self, *args, **more):
        self._count()
        super().report(*args, **more)


class Settings:
    """The settings file and the models that are loaded."""

    def __init__(self):
        self.kept, self.busy, self.loaded = [], 0, 0
        self.switch = Switch(busy=self._is_busy, keep=self.kept.append, unload=self._unload)

    def _is_busy(self, _folder):
        self.busy -= 1
        return self.busy > 0

    def _unload(self, _folder):
        self.loaded -= 1
        return self.loaded > 0


@pytest.fixture(params=["links", "copies"])
def library(request, paths, put, gguf, monkeypatch):
    """Three models, one of them removed, a note, a link to another drive and a partial download."""
    monkeypatch.setattr(models_folder, "_WAIT_S", 0)
    if request.param == "copies":

        def refuse(*_args, **_more):
            raise OSError(18, "Invalid cross-device link")

        monkeypatch.setattr(os, "link", refuse)
    put("one.gguf", gguf())
    put("org/two.gguf", gguf(numbers={"llama.context_length": 10}))
    put("org/.tessera.json", b"{}")
    put("gone.gguf", gguf(numbers={"llama.context_length": 20}))
    put(".partial/part", b"half of it")
    other = put("../other drive/real.gguf", gguf(numbers={"llama.context_length": 30}))
    (paths.models / "linked.gguf").symlink_to(other)
    made = Catalogue(paths)
    made.rename("one", "My model")
    Trash(made).remove(made.get("gone"))
    yield made
    made.close()


def contents(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def state_of(catalogue):
    return [(entry.id, entry.name, entry.state) for entry in catalogue.entries()]


def started(catalogue, target, settings):
    return check(catalogue.paths, target, settings.switch.keep)


def assert_moved(catalogue, source, target, before, files):
    """Everything is in the new folder, under the same ids; the old one is gone."""
    catalogue.refresh()
    assert state_of(catalogue) == before
    assert {entry.path.is_relative_to(target) for entry in catalogue.entries() if entry.id != "spark"} == {True}
    assert contents(target) == files
    assert not source.exists()
    Trash(catalogue).restore(Trash(catalogue).contents()[0].ticket)
    assert (target / "gone.gguf").exists()
    assert not source.exists()


def test_everything_moves_and_keeps_its_id_and_name(library, tmp_path):
    source, target, settings = library.paths.models, tmp_path / "new" / "models", Settings()
    before, files = state_of(library), contents(source)
    done = move(library, started(library, target, settings), JobContext(), settings.switch)
    assert (done.path, done.left, settings.kept) == (str(target), (), [None, target])
    assert_moved(library, source, target, before, files)


@pytest.mark.slow
def test_a_program_that_ends_at_any_moment_loses_nothing(library, tmp_path):
    """Every file is complete in one of the folders, and the same command continues."""
    home, settings, number = library.paths.models.parent, Settings(), 0

    def kill(_control):
        raise Killed

    paths = library.paths
    before, files = state_of(library), contents(paths.models)
    whole = {name: (paths.models / name).stat().st_size for name in files}
    backup = tmp_path / "backup"
    library.close()
    shutil.copytree(home, backup, symlinks=True)
    while True:
        number += 1
        target, settings = tmp_path / f"new-{number}", Settings()
        shutil.rmtree(home)
        shutil.copytree(backup, home, symlinks=True)
        paths.models = home / "models"
        opened = Catalogue(paths)
        task = started(opened, target, settings)
        try:
            move(opened, task, Stops(number, kill), settings.switch)
            break
        except Killed:
            pass
        opened.close()
        sizes = [
            {name: (folder / name).stat().st_size for name in contents(folder)}
            for folder in (home / "models", target)
        ]
        assert all(
            whole[name] in {found.get(name) for found in sizes} for name in files if "entry.json" not in name
        )
        paths.models = settings.kept[-1] or home / "models"  # what the next start reads
        opened = Catalogue(paths)
        again = check(paths, target, settings.switch.keep)
        assert again == task
        move(opened, again, JobContext(), settings.switch)
        assert_moved(opened, home / "models", target, before, files)
        opened.close()
    opened.close()
    assert number > len(files)


def test_a_cancelled_move_leaves_everything_where_it_was(library, tmp_path):
    source, target = library.paths.models, tmp_path / "new"
    before, files = state_of(library), contents(source)
    for number in range(1, len(files)):
        settings = Settings()
        with pytest.raises(Cancelled):
            move(
                library,
                started(library, target, settings),
                Stops(number, lambda control: control.ask("cancelled")),
                settings.switch,
            )
        assert (contents(source), target.exists(), settings.kept) == (files, False, [None])
    library.refresh()
    assert state_of(library) == before


def test_a_paused_move_is_cancelled_or_continued(library, tmp_path):
    source, target, settings = library.paths.models, tmp_path / "new", Settings()
    before, files = state_of(library), contents(source)
    task = started(library, target, settings)
    with pytest.raises(Paused):
        move(library, task, Stops(4, lambda control: control.ask("paused")), settings.switch)
    assert target.exists()
    cancelled = JobContext()
    cancelled.ask("cancelled")
    with pytest.raises(Cancelled):
        move(library, task, cancelled, settings.switch)
    assert not target.exists()
    settings.loaded = 3  # models that still read the old files
    move(library, task, JobContext(), settings.switch)
    assert_moved(library, source, target, before, files)


@pytest.mark.parametrize("busy", [3, 0], ids=["a model is in use", "nothing is in use"])
def test_what_changes_during_the_copy_is_copied_or_deleted_too(library, tmp_path, gguf, busy):
    source, target, settings = library.paths.models, tmp_path / "new", Settings()
    settings.busy = busy

    def change(_control):
        (source / "one.gguf").unlink()
        (source / "org" / "entry.json").write_text("{}")
        (source / "later.gguf").write_bytes(gguf(numbers={"llama.context_length": 40}))

    last = len(contents(source)) * 2
    move(library, started(library, target, settings), Stops(last, change), settings.switch)
    library.refresh()
    assert (target / "later.gguf").exists()
    assert (target / "org" / "entry.json").read_text() == "{}"
    assert not (target / "one.gguf").exists()
    assert not source.exists()


def test_a_scan_of_the_old_folder_that_ends_late_makes_no_second_entry(library, tmp_path):
    source, target, settings = library.paths.models, tmp_path / "new", Settings()
    before, old = state_of(library), library.get("one")

    def unload(_folder):
        late = msgspec.structs.replace(old, id="one-2", added_at=old.added_at + 1)
        library.store.put(str(source / "one.gguf"), late)
        return False

    switch = Switch(busy=settings.switch.busy, keep=settings.switch.keep, unload=unload)
    move(library, started(library, target, settings), JobContext(), switch)
    library.refresh()
    assert state_of(library) == before


def test_files_of_others_in_the_new_folder_stay(library, tmp_path):
    target, settings = tmp_path / "new", Settings()

    def add(control):
        (target / "theirs.txt").write_text("mine")
        control.ask("cancelled")

    with pytest.raises(Cancelled):
        move(library, started(library, target, settings), Stops(5, add), settings.switch)
    assert contents(target) == {"theirs.txt"}


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("home/models", "models_are_there"),
        ("home/models/deeper", "folder_within"),
        ("home", "folder_not_empty"),
        ("file", "not_a_folder"),
        ("full", "folder_not_empty"),
    ],
)
def test_a_folder_that_will_not_do_is_refused_with_the_reason(paths, put, gguf, tmp_path, place, kind):
    put("one.gguf", gguf())
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("")
    with pytest.raises(InputFault) as refusal:
        check(paths, tmp_path / place, lambda _: None)
    assert fact_of(refusal.value).kind == kind


def test_a_drive_that_is_too_small_is_refused_and_nothing_is_left_there(paths, put, gguf, tmp_path, monkeypatch):
    put("one.gguf", gguf())
    monkeypatch.setattr(models_folder, "_can_link", lambda *_: False)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1 << 30, 1 << 30, 1 << 20))
    with pytest.raises(NotEnoughDisk):
        check(paths, tmp_path / "small", lambda _: None)
    assert not (tmp_path / "small").exists()


def test_a_move_that_another_change_overtook_stops(library, tmp_path):
    settings = Settings()
    task = MoveTask(source=str(tmp_path / "third"), target=str(tmp_path / "new"))
    with pytest.raises(InputFault) as refusal:
        move(library, task, JobContext(), settings.switch)
    assert fact_of(refusal.value).kind == "folder_changed"
    assert Path(settings.kept[-1] if settings.kept else "/").exists()


@pytest.mark.parametrize("name", ["../victim", "{parent}/victim", "out/victim"])
def test_a_strangers_journal_deletes_and_writes_nothing_elsewhere(library, paths, name):
    source, target, parent = paths.models, paths.models.parent / "stick", paths.models.parent
    (parent / "victim").write_text("mine")
    (parent / "outside").mkdir()
    (parent / "outside" / "victim").write_text("mine")
    target.mkdir()
    (target / "out").symlink_to(parent / "outside")
    (target / "org").symlink_to(parent / "outside")  # the future path of one of the models
    lines = [str(source), name.format(parent=parent)]
    (target / ".moving.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, lines)))
    task = check(paths, target, Settings().kept.append)
    with pytest.raises(CannotWrite, match="leads out"):
        move(library, task, JobContext(), Settings().switch)
    cancelled = JobContext()
    cancelled.ask("cancelled")
    with pytest.raises(Cancelled):
        move(library, task, cancelled, Settings().switch)
    assert (parent / "victim").read_text() == (parent / "outside" / "victim").read_text() == "mine"
    assert sorted(p.name for p in (parent / "outside").iterdir()) == ["victim"]


def test_a_folder_that_is_named_in_a_roundabout_way_is_moved_to(library, paths):
    source, target = paths.models, paths.models.parent / "other" / ".." / "new"
    names = {path.name for path in source.rglob("*.gguf")}
    task = check(paths, target, Settings().kept.append)
    move(library, task, JobContext(), Settings().switch)
    assert names <= {path.name for path in target.resolve().rglob("*.gguf")}


def test_a_journal_that_is_a_link_is_not_written_through(library, paths):
    target, victim = paths.models.parent / "stick", paths.models.parent / "victim"
    target.mkdir()
    victim.write_bytes(msgspec.json.encode(str(paths.models)) + b"\n")
    (target / ".moving.jsonl").symlink_to(victim)
    before = victim.read_bytes()
    with pytest.raises(InputFault):
        check(paths, target, Settings().kept.append)
    assert victim.read_bytes() == before


@pytest.mark.parametrize(
    ("names", "formats"),
    [
        (("config.json", "tokenizer.json", "model.safetensors"), ["safetensors"]),
        (("config.json", "tokenizer.json", "model.onnx"), ["onnx"]),
        (("genai_config.json", "model.onnx"), ["onnx"]),
        (("model.onnx",), []),
    ],
)
def test_the_files_of_a_folder_make_models(tmp_path, names, formats):
    files = {name: ModelFile(path=str(tmp_path / name), size_bytes=1, mtime_ns=1) for name in names}
    assert [found.format for found in group(tmp_path, files)] == formats
