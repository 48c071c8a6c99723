"""Where a job may write, and which files its source consists of."""

import shutil

import pytest

from quantize.errors import CannotRead, InvalidOption, NotWritable, SourceChanged
from quantize.job.source import check_target, check_unchanged, identity, watched


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "a model"
    path.mkdir()
    for name in ("config.json", "model.safetensors", "older.gguf"):
        (path / name).write_text(name)
    return path


def test_a_job_may_write_into_the_folder_that_it_reads(folder):
    """Its unfinished files have hidden names; other files that appear belong to the model."""
    before = identity(folder)
    (folder / ".out.gguf.123.source.partial").write_text("weights")
    check_unchanged(folder, before)
    (folder / "model-2.safetensors").write_text("more")
    with pytest.raises(SourceChanged):
        check_unchanged(folder, before)


def test_a_folder_that_is_removed_is_named(folder):
    def job():
        with watched(folder):
            shutil.rmtree(folder)
            raise NotWritable("somewhere", "a consequence")

    with pytest.raises(CannotRead, match="a model"):
        job()


def test_other_files_of_the_folder_may_be_replaced(folder):
    check_target(folder, folder / "older.gguf")
    check_target(folder, folder / "new.gguf")
    with pytest.raises(InvalidOption, match=r"must end in \.gguf"):
        check_target(folder, folder / "model.safetensors")


def test_no_part_of_a_split_source_is_replaced(tmp_path):
    parts = [tmp_path / f"model-0000{n}-of-00002.gguf" for n in (1, 2)]
    for part in parts:
        part.write_text("x")
    for part in parts:
        with pytest.raises(InvalidOption, match="SOURCE itself"):
            check_target(parts[0], part)
    check_target(parts[0], tmp_path / "model-00001-of-00003.gguf")


def test_a_folder_in_place_of_the_file_is_refused(folder):
    with pytest.raises(InvalidOption, match="is a folder; name a file in it"):
        check_target(folder / "older.gguf", folder)


@pytest.mark.parametrize("name", ["small", "Model-4.5GiB", "model.bin"])
def test_a_name_that_no_program_takes_for_a_model_is_refused(name, folder):
    with pytest.raises(InvalidOption, match=f"{name} must end in .gguf"):
        check_target(folder, folder.parent / name)
    check_target(folder, folder.parent / f"{name}.GGUF")
