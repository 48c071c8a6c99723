"""A user's calibration text: what is used or omitted; the same sources give the same bytes."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from engine.core.errors import InputFault
from engine.job_kinds.quantize import calibration_text
from engine.job_kinds.quantize.calibration_text import gather, texts_of
from engine.job_kinds.quantize.options import QuantizeOptions

pytestmark = pytest.mark.process

LINE = "def answer(question): return model(question)  # our own code\n"


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    (folder / "node_modules").mkdir()
    for n in range(6):
        (folder / "src" / f"part{n}.py").write_text(f"# part {n}\n" + LINE * 400)
    (folder / "picture.png").write_bytes(b"\x89PNG\x00\x01" * 100)
    (folder / "node_modules" / "theirs.js").write_text("theirs();" * 100)
    (folder / ".env").write_text("PASSWORD=secret")
    (folder / "link.py").symlink_to("/etc/hostname")
    return folder


def gathered(folder, tmp_path, name, **more):
    scratch = tmp_path / name
    scratch.mkdir()
    found = gather([folder], scratch, **more)
    return found, found.calibration.read_text(encoding="utf-8")


@pytest.mark.parametrize("git", [False, True])
def test_a_project_gives_its_text_and_nothing_hidden_binary_or_foreign(project, tmp_path, git):
    if git:
        subprocess.run(["git", "init", "-q", project], check=True)
        (project / ".gitignore").write_text("node_modules\n.env\n")
    found, text = gathered(project, tmp_path, "a")
    held_out = found.held_out.read_text(encoding="utf-8")
    both = text + held_out
    assert all(f"# part {n}" in both for n in range(6))
    assert "PASSWORD" not in both
    assert "theirs" not in both
    assert "\x89PNG" not in both
    assert found.files == 6
    assert 3 * len(held_out) < text.count("our own code") * len(LINE) < 5 * len(held_out)
    assert stat.S_IMODE(found.calibration.stat().st_mode) == 0o600
    assert gathered(project, tmp_path, "b")[1] == text


def test_nothing_that_a_repository_names_is_run_and_no_pipe_is_waited_for(project, tmp_path):
    subprocess.run(["git", "init", "-q", project], check=True)
    for key in ("core.fsmonitor", "core.hooksPath"):
        subprocess.run(["git", "-C", project, "config", key, f"touch {tmp_path / 'ran'}; false"], check=True)
    os.mkfifo(project / ".gitignore")
    os.mkfifo(project / "src" / "pipe.py")
    found, text = gathered(project, tmp_path, "a")
    assert found.files == 6
    assert "# part 5" in text + found.held_out.read_text()
    assert not (tmp_path / "ran").exists()


def test_of_very_many_files_some_from_all_over_are_read(tmp_path, monkeypatch):
    folder = tmp_path / "many"
    folder.mkdir()
    for n in range(90):
        (folder / f"{n:03}.txt").write_text(f"file {n} says so. " * 5000)
    monkeypatch.setattr(calibration_text, "_MOST_FILES", 40)
    monkeypatch.setattr(calibration_text, "_READ_BYTES", 30 * 5000)
    found, text = gathered(folder, tmp_path, "a")
    assert found.files == 30
    assert found.characters <= 30 * 5000
    both = text + found.held_out.read_text()
    assert "file 0 says" in both
    assert "file 87 says" in both


def test_a_folder_of_a_request_is_made_into_texts_that_go_when_the_job_ends(project, tmp_path):
    options = QuantizeOptions(model="spark", calibration=str(project))
    with texts_of(options) as told:
        made = Path(told.calibration)
        assert "# part 3" in made.read_text() + Path(told.own_text).read_text()
        assert stat.S_IMODE(made.parent.stat().st_mode) == 0o700
    assert not made.parent.exists()
    text = project / "src" / "part1.py"
    for other in (QuantizeOptions(model="spark"), QuantizeOptions(model="spark", calibration=str(text))):
        with texts_of(other) as told:
            assert told == other
    with pytest.raises(InputFault, match="whole path"), texts_of(QuantizeOptions(model="a", calibration="src")):
        pass
    few = tmp_path / "few"
    few.mkdir()
    asked = QuantizeOptions(model="a", calibration=str(few))
    with pytest.raises(InputFault, match="no readable text"), texts_of(asked):
        pass
    (few / "a.txt").write_text("a few words")
    with pytest.raises(InputFault, match="few has 11 characters of text; about 81,920 are needed"), texts_of(asked):
        pass


def test_one_huge_file_leaves_room_for_the_others(tmp_path):
    folder = tmp_path / "notes"
    folder.mkdir()
    for n in range(20):
        (folder / f"{n}.txt").write_text(f"{n} is long. " * 50_000)
    (folder / "small.txt").write_text("the small one counts in full")
    found, text = gathered(folder, tmp_path, "a")
    assert found.characters <= 400_000
    assert "the small one counts in full" in text + found.held_out.read_text()
    assert all(f"{n} is long" in text for n in range(20))


def test_half_of_it_is_the_text_that_comes_with_the_program(project, tmp_path):
    _, text = gathered(project, tmp_path, "a", chats=["What is a tessera?\n\nA tile of a mosaic."])
    assert "A tile of a mosaic." in text
    assert text.count("our own code") * len(LINE) < len(text) / 2


def test_too_little_text_holds_nothing_out_and_none_is_refused(tmp_path):
    folder = tmp_path / "few"
    folder.mkdir()
    with pytest.raises(InputFault, match="no readable text"):
        gather([folder], tmp_path)
    (folder / "a.txt").write_text("a few words")
    assert gather([folder], tmp_path).held_out is None
