"""Figures of the library: `python -m tests.bench.bench_library`. Not part of the test run."""

import hashlib
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path

os.environ["HF_TOKEN"] = ""

from engine.core.errors import Cancelled
from engine.core.paths import Paths
from engine.jobs.jobs import JobContext
from engine.library import work as verify
from engine.library.catalogue import Catalogue
from engine.library.hub.client import HubClient
from engine.library.hub.plan import plan_repository
from engine.placement.hub_shape import fit_estimator
from engine.placement.placer import Placer
from engine.placement.resources import open_resources
from quantize.files.gguf_file import read_gguf, read_gguf_source
from quantize.ggml_types import GgmlType
from tests.support.fakes.fake_hub import FakeHub
from tests.support.models.fake_models import Zeros, remote_gguf, repository_of_twenty


def timed(label, work, repeat=5):
    spent = []
    for _ in range(repeat):
        begin = time.perf_counter()
        work()
        spent.append((time.perf_counter() - begin) * 1000)
    print(f"{label:<64}{statistics.median(spent):10.1f} ms (min {min(spent):.1f}, max {max(spent):.1f})")


def folders(root):
    return Paths(root / "config", root / "models", root / "state", root / "cache", root / "logs")


def serve_hub(files, pipe):
    """The hub in a separate process, so that it does not share the client's interpreter."""
    with FakeHub() as hub:
        hub.add("org/Big-GGUF", files)
        hub.faults.delay_s, hub.faults.bytes_per_s = 0.05, 12.5e6
        pipe.send(hub.endpoint)
        while pipe.recv() == "count":
            pipe.send((hub.sent_bytes, len(hub.requests)))
            hub.settle()


def planning(root):
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=serve_hub, args=(repository_of_twenty(), there))
    child.start()
    client = HubClient(here.recv())
    for label in ("first look", "second look"):
        begin = time.perf_counter()
        plan = plan_repository(
            client, folders(root), "org/Big-GGUF", estimate=fit_estimator(Placer(open_resources(folders(root))))
        )
        took = time.perf_counter() - begin
        here.send("count")
        sent, requests = here.recv()
        print(
            f"plan, 20 files, 150,000 tokens, 50 ms, 100 Mbit/s, {label:<12}"
            f"{took * 1000:10.0f} ms, {sent / 1e6:.2f} MB, {requests} requests,"
            f" {sum(1 for o in plan.options if o.details)} headers, own build {plan.own.kld:.4f}"
            f" against {plan.own.ready_kld} of {plan.own.instead_of}"
        )
    here.send("stop")
    child.join()


def reading(root):
    remote = remote_gguf(GgmlType.Q4_K, 15)
    path = root / "header.gguf"
    with path.open("wb") as file:
        file.write(remote.data.head)
        file.truncate(remote.data.size)
    timed(f"header of {len(remote.data.head) / 1e6:.1f} MB, 150,000 tokens, from disk", lambda: read_gguf(path))

    class Memory:
        name, size = "memory", remote.data.size

        @staticmethod
        def read_at(offset, length):
            return Zeros(remote.data.head, remote.data.size)[offset : offset + length]

    timed("the same from memory", lambda: read_gguf_source(Memory))


def thousand(root):
    paths = folders(root / "thousand")
    paths.models.mkdir(parents=True)
    head = Path("assets/models/spark-f16.gguf")
    raw = head.read_bytes()
    # The demo's real header (vocabulary and chat template) in a thousand sparse files.
    end = read_gguf(head).data_offset
    for number in range(1000):
        with (paths.models / f"model-{number:04}-Q4_K_M.gguf").open("wb") as file:
            file.write(raw[:end])
            file.truncate(len(raw))
    begin = time.perf_counter()
    catalogue = Catalogue(paths)
    print(f"first scan of 1,000 models {(time.perf_counter() - begin) * 1000:48.0f} ms")
    timed("list of 1,000 models, warm (entries with a look at each file)", catalogue.entries)
    timed("rescan of 1,000 known models", catalogue.refresh)
    timed("open, scan and list, as `tessera models list` does", lambda: Catalogue(paths).entries())
    new = paths.models / "one-more.gguf"
    new.write_bytes(raw)
    begin = time.perf_counter()
    catalogue.add(new)
    print(f"add one model {(time.perf_counter() - begin) * 1000:61.1f} ms")


def hashing(root):
    paths = folders(root / "hash")
    paths.models.mkdir(parents=True)
    big = paths.models / "big.gguf"
    remote = remote_gguf(GgmlType.Q4_K, 15, tokens=1000, layers=8)
    size = 1 << 30
    with big.open("wb") as file:
        file.write(b"x" * size)
    seen = []
    begin = time.perf_counter()
    verify.sha256_of(big, JobContext(seen.append))
    spent = time.perf_counter() - begin
    print(f"sha256 of 1 GiB {spent * 1000:58.0f} ms, {size / spent / 1e6:.0f} MB/s, {len(seen)} reports")
    begin = time.perf_counter()
    hashlib.file_digest(big.open("rb"), "sha256")
    print(f"hashlib alone {(time.perf_counter() - begin) * 1000:60.0f} ms")
    control = JobContext()
    timer = threading.Timer(0.2, lambda: (stamps.append(time.perf_counter()), control.ask("cancelled")))
    stamps = []
    timer.start()
    try:
        verify.sha256_of(big, control)
    except Cancelled:
        print(f"cancel took effect after {(time.perf_counter() - stamps[0]) * 1000:49.1f} ms")
    del remote


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for part in (planning, reading, thousand, hashing):
            part(Path(folder))
