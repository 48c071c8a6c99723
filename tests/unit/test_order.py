"""The order of the complete run."""

from pathlib import Path

from tests.support.plugins import order
from tests.support.plugins.order import SECONDS, WITH, seconds_of, with_seconds

ROOT = Path(__file__).resolve().parents[2]


def test_every_file_that_is_named_is_there():
    named = {*SECONDS, *WITH, *WITH.values()}
    assert [file for file in sorted(named) if not (ROOT / file).is_file()] == []


def test_the_table_is_written_from_what_a_run_tells_of_its_files():
    told = [(0.4, 9.2, 3, 12.6), (1.0, 0.0, 0, 1.2), (30.0, 8.04, 12, 7.6)]
    files = [*list(SECONDS)[:2], next(iter(WITH.values()))]
    log = "".join(
        f"{here:9.2f} {children:9.2f} ({starts}) {seconds:9.2f}s {file}\n"
        for (here, children, starts, seconds), file in zip(told, files, strict=True)
    )
    follower = next(file for file, leader in WITH.items() if leader == files[2])
    log += f"9.00s call     {files[1]}::test_a\n     1.00      0.00 (0)      0.50s {follower}\n"
    seconds = seconds_of(log)
    assert seconds == {files[0]: 13, files[2]: 8}
    source = Path(order.__file__).read_text("utf-8")
    assert with_seconds(source, SECONDS) == source
    written = {}
    exec(compile(with_seconds(source, seconds), order.__file__, "exec"), written)
    assert written["SECONDS"] == seconds
    assert written["WITH"] == WITH
