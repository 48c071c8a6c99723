"""Huge pages: forbidden during a load, merged during pauses, and their content never changes."""

import mmap
import sys
from pathlib import Path

import pytest

from engine.runner.llama.native import huge_pages
from engine.runner.llama.native.huge_pages import SIZE, LargePages

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="large pages of Linux")
WISHES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def region(count=8):
    taken = mmap.mmap(-1, (count + 1) * SIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    taken.madvise(mmap.MADV_HUGEPAGE)
    return taken


def fill(taken):
    for at in range(0, len(taken), 4096):
        taken[at] = at // 4096 % 251


def filled(taken):
    return all(taken[at] == at // 4096 % 251 for at in range(0, len(taken), 4096))


def large_kib():
    return int(Path("/proc/self/smaps_rollup").read_text().split("AnonHugePages:")[1].split()[0])


@pytest.fixture
def wanted(monkeypatch):
    if not WISHES.exists() or "[never]" in WISHES.read_text():
        pytest.skip("this system gives no large pages")
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")


@pytest.mark.slow
def test_small_pages_in_a_virtual_machine_and_large_ones_in_the_pause(wanted, monkeypatch):
    monkeypatch.setattr(huge_pages, "virtual", lambda: True)
    before, kept = large_kib(), LargePages()
    with kept.loading():
        taken = region()
        fill(taken)
        assert large_kib() - before < SIZE >> 10
        kept.collapse(lambda: pytest.fail("the load is not over"))
    with taken:
        assert kept.postponed
        looks = iter([True, True, False])
        kept.collapse(lambda: next(looks))
        assert kept.postponed
        if not kept._left:
            pytest.skip("a kernel that cannot put pages together")
        kept.collapse(lambda: True)
        assert large_kib() - before >= 6 * SIZE >> 10
        assert filled(taken)
    assert not kept.postponed


def test_large_pages_on_a_machine_of_its_own(wanted, monkeypatch):
    monkeypatch.setattr(huge_pages, "virtual", lambda: False)
    before, kept = large_kib(), LargePages()
    with kept.loading(), region() as taken:
        fill(taken)
        assert large_kib() - before >= 6 * SIZE >> 10
    assert not kept.postponed
    kept.collapse(lambda: pytest.fail("there is nothing to put together"))


def test_the_system_decides_again_behind_a_load_that_failed(wanted, monkeypatch):
    monkeypatch.setattr(huge_pages, "virtual", lambda: True)
    with pytest.raises(OSError, match="no model"), LargePages().loading():
        raise OSError("no model")
    before = large_kib()
    with region() as taken:
        fill(taken)
        assert large_kib() - before >= 6 * SIZE >> 10


def test_only_ranges_that_are_wholly_there_are_put_together():
    with region(4) as taken:
        huge_pages._forbid(1)
        try:
            known = set(huge_pages.whole_ranges())
            taken[SIZE] = 1  # one small page of a range
            assert set(huge_pages.whole_ranges()) <= known
            fill(taken)
            assert len(set(huge_pages.whole_ranges()) - known) >= 3
        finally:
            huge_pages._forbid(0)


@pytest.mark.parametrize(
    ("tunables", "told"),
    [("", False), ("glibc.malloc.hugetlb=1", True), ("glibc.malloc.hugetlb=1:glibc.malloc.hugetlb=0", False)],
)
def test_the_last_word_of_the_user_counts(monkeypatch, tunables, told):
    monkeypatch.setenv("GLIBC_TUNABLES", tunables)
    assert huge_pages.asked() is told
    monkeypatch.setattr(huge_pages, "virtual", lambda: True)
    kept = LargePages()
    with kept.loading():
        pass
    assert kept.postponed is told


@pytest.mark.parametrize(
    ("told", "is_virtual"),
    [
        ("processor\t: 0\nflags\t\t: fpu hypervisor lahf_lm\n", True),
        ("processor\t: 0\nflags\t\t: fpu lahf_lm\nbugs\t: hypervisor\n", False),
        ("processor\t: 0\nFeatures\t: fp asimd\n", False),
        (None, False),
    ],
)
def test_the_processor_tells_whether_it_is_virtual(monkeypatch, tmp_path, told, is_virtual):
    file = tmp_path / "cpuinfo"
    if told is not None:
        file.write_text(told)
    monkeypatch.setattr(huge_pages, "CPUINFO", str(file))
    assert huge_pages.virtual() is is_virtual
