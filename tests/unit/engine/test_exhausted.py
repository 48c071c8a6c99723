"""If the system runs out of a resource, requests and jobs report it as such, not as a bug with a traceback."""

import asyncio
import errno
import json
import subprocess
import sys

import apsw
import pytest
from starlette.requests import Request

from engine.core.errors import exhausted
from engine.jobs.jobs import JobKind, JobRegistry
from engine.server.body import form_of
from engine.server.middleware import ErrorMiddleware
from engine.server.openai.errors import SHAPE
from engine.server.sse import EventStream

CAUSES = [
    (OSError(errno.EMFILE, "Too many open files"), "file descriptors"),
    (OSError(errno.ENOSPC, "No space left on device"), "disk space"),
    (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory"),
    (apsw.FullError("database or disk is full"), "disk space"),
    (MemoryError(), "memory"),
    (RuntimeError("can't start new thread"), "threads"),
]

# Threads until the system has no memory for another stack.
NO_MORE_THREADS = """
import resource, threading
from engine.core.errors import exhausted
threading.stack_size(64 << 20)
now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + (150 << 20),) * 2)
done = threading.Event()
try:
    while True:
        threading.Thread(target=done.wait, daemon=True).start()
except RuntimeError as error:
    print(exhausted(error).what)
    done.set()
"""


def test_a_request_that_needs_a_part_which_is_not_installed_names_it(caplog):
    async def app(scope, receive, send):
        raise ModuleNotFoundError("No module named 'huggingface_hub.utils'", name="huggingface_hub.utils")

    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(ErrorMiddleware(app)({"type": "http", "path": "/tessera/v1/hub/search"}, None, send))
    error = json.loads(sent[1]["body"])["error"]
    assert (sent[0]["status"], error["code"]) == (503, "part_missing")
    assert "pip install '.[hub]'" in error["message"]
    assert (b"x-should-retry", b"false") in sent[0]["headers"]
    assert "Traceback" not in caplog.text
    assert exhausted(ModuleNotFoundError("No module named 'app.nothing'", name="app.nothing")) is None, "a bug"


def test_a_form_without_the_package_that_reads_it_names_the_part(monkeypatch):
    monkeypatch.setitem(sys.modules, "python_multipart", None)
    with pytest.raises(ModuleNotFoundError) as missing:
        asyncio.run(form_of(Request({"type": "http", "headers": []}), 5))
    assert exhausted(missing.value).what == "part 'documents'"


@pytest.mark.parametrize(("error", "what"), CAUSES)
def test_a_request_is_refused_with_503_and_one_line(error, what, caplog):
    async def app(scope, receive, send):
        raise error

    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(ErrorMiddleware(app)({"type": "http", "path": "/v1/models"}, None, send))
    told = json.loads(sent[1]["body"])["error"]
    assert (sent[0]["status"], told["code"]) == (503, "out_of_resources")
    assert what in told["message"]
    assert "Traceback" not in caplog.text
    assert what in caplog.text


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="the limit of memory is Linux's")
def test_what_python_says_without_threads_is_known():
    command = [sys.executable, "-c", NO_MORE_THREADS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "threads", done.stderr


def test_a_stream_that_cannot_begin_is_refused_alike(caplog):
    async def chunks():
        raise OSError(errno.EMFILE, "Too many open files")
        yield b""

    sent = []

    async def send(message):
        sent.append(message)

    async def never():
        await asyncio.Event().wait()

    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": []}
    asyncio.run(EventStream(chunks(), SHAPE)(scope, never, send))
    assert (sent[0]["status"], json.loads(sent[1]["body"])["error"]["code"]) == (503, "out_of_resources")
    assert "Traceback" not in caplog.text


def test_who_still_waits_when_the_server_is_stopped_is_told_so():
    """Requests that uvicorn cancelled at its end got a text that no client reads, and one traceback each."""
    sent = []

    async def app(scope, receive, send):
        await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    async def stopped():
        task = asyncio.create_task(ErrorMiddleware(app)({"type": "http", "path": "/v1/models"}, None, send))
        await asyncio.sleep(0)
        task.cancel()
        await task

    asyncio.run(stopped())
    assert (sent[0]["status"], json.loads(sent[1]["body"])["error"]["code"]) == (503, "stopping")


def test_what_is_no_lack_of_anything_is_a_bug():
    assert exhausted(OSError(errno.ENOENT, "No such file")) is None
    assert exhausted(apsw.ConstraintError("UNIQUE")) is None
    assert exhausted(ValueError("x")) is None
    of_itself = ValueError("x")
    of_itself.__cause__ = of_itself
    assert exhausted(of_itself) is None


def test_a_job_says_what_there_was_none_of(tmp_path, caplog):
    def work(params, control):
        raise apsw.FullError("database or disk is full")

    jobs = JobRegistry(tmp_path / "jobs.json")
    jobs.register(JobKind.VERIFY, work)
    job = jobs.start(JobKind.VERIFY, "x", {})
    jobs._threads[job.id].join(60)
    ended = jobs.get(job.id)
    assert (ended.state, ended.error.code) == ("failed", "out_of_resources")
    assert "disk space" in ended.error.message
    assert "Traceback" not in caplog.text
