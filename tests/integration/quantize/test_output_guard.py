"""The process that removes unfinished files, if it is killed itself."""

from pathlib import Path

from quantize.errors import BadFile
from quantize.files.output_file import Output


def test_a_guard_that_was_ended_is_replaced_by_one_that_knows_all_files(tmp_path):
    with Output(tmp_path / "out.gguf") as out:
        first = out.partial("first")
        first.write_bytes(b"x")
        ended = out._guard
        ended.kill()
        ended.wait()
        second = out.partial("second")
        second.write_bytes(b"x")
        guard, out._guard = out._guard, None
        assert guard.poll() is None
        guard.stdin.close()  # as if this process had died
        guard.wait(60)
        assert not first.exists()
        assert not second.exists()


def test_an_error_names_the_source_or_the_output_in_place_of_a_temporary_file(tmp_path):
    with Output(tmp_path / "out.gguf") as out:
        for kind, known in (("source", "model"), ("ours", str(tmp_path / "out.gguf"))):
            error = BadFile(str(out.partial(kind)), "damaged")
            out.name_source(error, Path("model"))
            assert (str(error), error.path) == (f"{known}: damaged", known)
