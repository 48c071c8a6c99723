"""Integration of llama.cpp's converter: when it runs, what it can access, and which results are accepted."""

import contextlib
import platform
import sys
import tarfile
import threading
import time

import psutil
import pytest

from devices import landlock
from devices.errors import TesseraError
from engine.core.errors import Cancelled
from engine.core.paths import user_paths
from engine.jobs.jobs import JobContext
from engine.library.catalogue import Catalogue
from engine.library.converter import environment
from engine.library.converter.environment import NoConverter
from engine.library.converting import convert_folder
from quantize.errors import BadFile, ConverterNeeded
from tests.support.fakes.standin_converter import SPARK, WRITES, foreign_folder, stand_in
from tests.support.servers import wait_for


@pytest.fixture
def catalogue():
    opened = Catalogue(user_paths())
    yield opened
    opened.close()


def convert(catalogue, folder, control=None):
    return convert_folder(catalogue, folder, None, "auto", control or JobContext())


def left(catalogue):
    folder = catalogue.paths.models / "local"
    return sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []


def test_it_is_needed_then_used_and_its_file_joins_the_library(catalogue, tmp_path):
    folder = foreign_folder(tmp_path / "granite")
    (folder / "modeling_own.py").write_text("raise SystemExit")
    with pytest.raises(ConverterNeeded, match="converter supports it"):
        convert(catalogue, folder)
    assert left(catalogue) == []
    stand_in(catalogue.paths.converter)
    entry, done = convert(catalogue, folder)
    assert entry.path.read_bytes() == SPARK.read_bytes()
    assert (done.architecture, done.float_type) == ("llama", "F16")
    assert done.notes[0].startswith("converted by llama.cpp's own converter")
    assert any("modeling_own.py was not run" in note for note in done.notes)


def test_no_program_next_to_a_chosen_models_folder_is_run(tmp_path, monkeypatch):
    models = tmp_path / "stick" / "models"
    models.mkdir(parents=True)
    monkeypatch.setenv("TESSERA_MODELS_FOLDER", str(models))
    stand_in(models.parent / "converter")
    with contextlib.closing(Catalogue(user_paths())) as catalogue:
        with pytest.raises(ConverterNeeded):
            convert(catalogue, foreign_folder(tmp_path / "granite"))
        before = catalogue.paths.converter
        catalogue.paths.models = tmp_path / "moved"
        assert catalogue.paths.converter == before


@pytest.mark.parametrize(
    ("script", "error", "words"),
    [
        ("raise NotImplementedError('BPE pre-tokenizer was not recognized')", NoConverter, "was not recognized"),
        ("import os; os.kill(os.getpid(), 9)", NoConverter, "converter failed"),
        ("pass", TesseraError, "incomplete"),
        (WRITES + "open(out, 'r+b').truncate(100_000)", TesseraError, "incomplete"),
        (WRITES + "open(out, 'ab').write(b'x' * 1000)", BadFile, "follow the last tensor"),
    ],
)
def test_a_crash_and_a_wrong_file_leave_nothing(catalogue, tmp_path, script, error, words):
    stand_in(catalogue.paths.converter, script)
    with pytest.raises(error, match=words):
        convert(catalogue, foreign_folder(tmp_path / "granite"))
    assert left(catalogue) == []


@pytest.mark.skipif(not landlock.version(), reason="no Landlock here")
def test_it_reaches_neither_the_network_nor_other_files(catalogue, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("key")
    tries = f"""
import os, socket, sys
said = []
for name, what in (
    ("socket", lambda: socket.socket()),
    ("read", lambda: open({str(secret)!r}).read()),
    ("write", lambda: open({str(tmp_path / "granite" / "config.json")!r}, "a")),
    ("beside", lambda: open(sys.argv[sys.argv.index("--outfile") + 1] + ".more", "w")),
):
    try:
        what()
        said.append(name)
    except OSError:
        pass
said += [name for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if os.environ.get(name) != "1"]
said += [word for word in ("--remote", "--trust-remote-code") if word in sys.argv]
if said:
    raise SystemExit("reached " + " ".join(said))
"""
    stand_in(catalogue.paths.converter, tries + WRITES)
    entry, _ = convert(catalogue, foreign_folder(tmp_path / "granite"))
    assert entry.path.is_file()


def test_a_program_of_the_publishers_fails_when_it_is_asked_for(catalogue, tmp_path):
    asks = "from transformers import dynamic_module_utils as m\nm.get_class_from_dynamic_module('evil.Config', '.')"
    stand_in(catalogue.paths.converter, asks)
    with pytest.raises(NoConverter, match="no other code is run"):
        convert(catalogue, foreign_folder(tmp_path / "granite"))


def converters(before):
    """New child processes that convert; one that is ending may disappear during the query."""
    found = []
    for child in set(psutil.Process().children(recursive=True)) - before:
        with contextlib.suppress(psutil.Error):
            found += [child] if "convert" in " ".join(child.cmdline()) else []
    return found


def test_cancelled_it_is_gone_with_what_it_wrote(catalogue, tmp_path):
    stand_in(catalogue.paths.converter, WRITES + "import time; time.sleep(100)")
    control = JobContext()
    before = set(psutil.Process().children(recursive=True))

    def cancel():
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            partial = list((catalogue.paths.models / "local").glob(".*.partial"))
            if partial and partial[0].stat().st_size == SPARK.stat().st_size:
                break
            time.sleep(0.05)
        control.ask("cancelled")

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(Cancelled):
        convert(catalogue, foreign_folder(tmp_path / "granite"), control)
    thread.join()
    assert left(catalogue) == []
    wait_for(lambda: not converters(before), what="the converter's end")


def test_its_size_is_told_and_it_can_be_removed(catalogue):
    folder = catalogue.paths.converter
    assert environment.installed(folder) is None
    stand_in(folder)
    found = environment.installed(folder)
    assert found is not None
    assert found.num_bytes == 12345
    assert environment.size_on_disk(folder) > SPARK.stat().st_size
    assert environment.remove(folder) > SPARK.stat().st_size
    assert not folder.exists()
    assert environment.remove(folder) == 0


def test_without_an_index_it_says_so_and_what_is_there_does_not_count(catalogue, monkeypatch, tmp_path):
    """A real environment is created, but no package index is available."""
    for name in ("PIP_CONFIG_FILE", "PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    # No package is installed here, so it does not matter for which versions there are wheels.
    monkeypatch.setattr(environment, "_PYTHONS", {(sys.platform, platform.machine()): (sys.version_info[:2],)})
    told = []
    with pytest.raises(NoConverter, match="could not be downloaded"):
        environment.install(catalogue.paths.converter, JobContext(told.append))
    assert environment.installed(catalogue.paths.converter) is None
    assert {p.phase for p in told} == {"fetching"}
    stopped = JobContext()
    stopped.ask("cancelled")
    with pytest.raises(Cancelled):
        environment.install(catalogue.paths.converter, stopped)
    assert environment.remove(catalogue.paths.converter) > 0


def test_only_the_converter_is_taken_out_of_the_archive(tmp_path):
    root = tmp_path / "llama_cpp_python-9.9" / "vendor" / "llama.cpp"
    for name in ("convert_hf_to_gguf.py", "conversion/base.py", "ggml/src/ggml.c", environment._REQUIREMENTS):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "conversion" / "link.py").symlink_to("/etc/passwd")
    archive = tmp_path / "llama_cpp_python-9.9.tar.gz"
    with tarfile.open(archive, "w:gz") as made:
        made.add(tmp_path / "llama_cpp_python-9.9", "llama_cpp_python-9.9")
    environment.unpack(archive, tmp_path / "out")
    taken = {str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*") if p.is_file()}
    assert taken == {"convert_hf_to_gguf.py", "conversion/base.py", environment._REQUIREMENTS}
    archive.write_bytes(b"no archive")
    with pytest.raises(NoConverter, match="cannot be unpacked"):
        environment.unpack(archive, tmp_path / "again")
