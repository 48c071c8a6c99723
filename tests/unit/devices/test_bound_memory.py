"""Children that compute get no more private memory than the computer has, and leave no core files."""

import asyncio
import subprocess
import sys

import psutil
import pytest

from devices.process_memory import bound_memory
from engine.runner.process import RunnerProcess

pytestmark = pytest.mark.process

linux = pytest.mark.skipif(sys.platform != "linux", reason="limits of another process are Linux's")


@linux
def test_a_child_that_takes_all_memory_fails_by_itself():
    script = "import sys; sys.stdin.read(1); b = bytearray(int(sys.argv[1]))"
    more = str(psutil.virtual_memory().total + (1 << 30))
    child = subprocess.Popen([sys.executable, "-c", script, more], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    bound_memory(child.pid)
    _, told = child.communicate(b"x", timeout=60)
    assert b"MemoryError" in told


@linux
def test_a_runner_is_bounded_before_it_loads_anything():
    async def limits():
        runner = await RunnerProcess.start("llama", "")
        try:
            process = psutil.Process(runner.pid)
            return process.rlimit(psutil.RLIMIT_DATA)[1], process.rlimit(psutil.RLIMIT_CORE)[1]
        finally:
            await runner.stop()

    assert asyncio.run(limits()) == (psutil.virtual_memory().total, 0)


def test_a_child_that_has_ended_is_no_fault():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    bound_memory(child.pid)


ALLOCATING = """
import ctypes, sys, threading
from devices.process_memory import few_heaps
if sys.argv[2] == "few":
    assert few_heaps()
all_there = threading.Barrier(12)
def work():
    kept = [bytes(2000) for _ in range(50)]
    all_there.wait(60)
threads = [threading.Thread(target=work) for _ in range(12)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
told = ctypes.c_void_p(libc.fopen(sys.argv[1].encode(), b"w"))
libc.malloc_info(0, told)
libc.fclose(told)
"""


@linux
@pytest.mark.parametrize(("heaps", "most"), [("few", 2), ("many", 200)])
def test_threads_share_two_heaps_where_that_is_asked(tmp_path, heaps, most):
    report = tmp_path / "heaps.xml"
    subprocess.run([sys.executable, "-c", ALLOCATING, report, heaps], check=True, timeout=60)
    number = report.read_text().count("<heap ")
    assert number <= most
    assert heaps == "few" or number > 2, "the test shows nothing where the library makes few by itself"


FREEING = """
import ctypes, psutil
from devices.process_memory import give_back_freed
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
def held():
    return psutil.Process().memory_info().rss
before = held()
blocks = [libc.malloc(60_000) for _ in range(1000)]
for block in blocks:
    ctypes.memset(block, 1, 60_000)
for block in blocks[:-1]:
    libc.free(ctypes.c_void_p(block))
print(held() - before)
assert give_back_freed()
print(held() - before)
"""


@linux
def test_what_was_freed_under_a_block_in_use_is_given_back():
    told = subprocess.run([sys.executable, "-c", FREEING], capture_output=True, text=True, check=True)
    kept, left = map(int, told.stdout.split())
    assert kept > 50e6
    assert left < 5e6
