"""Index many pages with a real server: time, CPU time, memory of all its processes, and bytes on disk.

python tests/bench/documents_index.py [PAGES] --text FILE... [--embedding MODEL.gguf] [--kill N]

The pages are PDF pages of the given texts, 300 words each, 100 to a file. With --kill the server is killed so many
times in between. Processor time is what a busy machine does not spoil; divided by the cores it is the least time.
"""

import argparse
import contextlib
import itertools
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("TESSERA_INSTALLED_MODELS", "/nonexistent")

from tests.support import documents_made as made
from tests.support.servers import RunningServer

WORDS, LINE, PER_FILE = 300, 12, 100


def pages_of(texts, count):
    words = itertools.cycle(" ".join(Path(t).read_text(errors="replace") for t in texts).split())
    for number in range(1, count + 1):
        page = [w.encode("cp1252", "ignore").decode("cp1252") for w in itertools.islice(words, WORDS)]
        page[0] = f"marker{number}x"
        yield [" ".join(page[i : i + LINE]) for i in range(0, WORDS, LINE)]


def family(process):
    with contextlib.suppress(psutil.Error):
        return [process, *process.children(recursive=True)]
    return [process]


class Watch:
    """CPU seconds and peak memory of a server's processes."""

    def __init__(self):
        self.seconds, self.peak, self.of = {}, 0, {}

    def look(self, pid):
        total, parts = 0, {}
        for process in family(psutil.Process(pid)):
            try:
                times, memory = process.cpu_times(), process.memory_full_info()
                name = next((p for p in process.cmdline() if p.startswith("engine.")), "server")
            except psutil.Error:
                continue
            self.seconds[process.pid, process.create_time()] = name, times.user + times.system
            total += memory.pss
            parts[name] = parts.get(name, 0) + memory.pss
        if total > self.peak:
            self.peak, self.of = total, parts

    def by_name(self):
        found = {}
        for name, seconds in self.seconds.values():
            found[name] = found.get(name, 0) + seconds
        return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("pages", type=int, nargs="?", default=20_000)
    parser.add_argument("--text", nargs="+", required=True)
    parser.add_argument("--embedding")
    parser.add_argument("--kill", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        run(Path(place), options)


def run(place, options):  # noqa: C901, PLR0915 - one measurement from its beginning to its end
    import httpx2

    folder, home = place / "pages", place / "home"
    folder.mkdir()
    (home / "models").mkdir(parents=True)
    if options.embedding:
        (home / "models" / Path(options.embedding).name).write_bytes(Path(options.embedding).read_bytes())
    every = list(pages_of(options.text, options.pages))
    for first in range(0, len(every), PER_FILE):
        made.pdf(folder / f"volume{first:06}.pdf", every[first : first + PER_FILE])
    watch, killed, began, words_s = Watch(), 0, time.monotonic(), 0.0
    server = RunningServer(home)

    def ask(method, path, **more):
        headers = {"authorization": f"Bearer {server.token}"}
        return httpx2.request(
            method, f"{server.url}/tessera/v1/collections{path}", headers=headers, timeout=60, **more
        )

    ask("POST", "", json={"name": "bench", "sources": [str(folder)]})
    while True:
        time.sleep(1)
        watch.look(server.process.pid)
        state = ask("GET", "/bench").json()
        if not words_s and state["state"] != "reading" and state["pages"]:
            words_s = time.monotonic() - began
        share = (state["pages"] / options.pages + state["embedded"] / max(state["chunks"], 1)) / 2
        if killed < options.kill and share > (killed + 0.5) / options.kill * 0.9:
            before = state["pages"], state["embedded"]
            children = psutil.Process(server.process.pid).children(recursive=True)
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()
            psutil.wait_procs(children, 10)
            (home / "state" / "server.json").unlink(missing_ok=True)
            killed += 1
            server = RunningServer(home)
            after = ask("GET", "/bench").json()
            print(f"killed at {before}, after the restart {after['pages'], after['embedded']}", flush=True)
        if state["state"] == "ready" and state["pages"] == options.pages:
            break
    wall = time.monotonic() - began
    by_name = watch.by_name()
    print(f"{state['pages']} pages, {state['chunks']} passages, {state['embedded']} with vectors")
    print(f"words after {words_s:.0f} s, all after {wall:.0f} s")
    print(f"processor {sum(by_name.values()):.0f} s of {os.cpu_count()} cores")
    print("  " + ", ".join(f"{name} {seconds:.0f} s" for name, seconds in sorted(by_name.items())))
    print(f"memory at most {watch.peak >> 20} MiB: " + ", ".join(f"{n} {b >> 20}" for n, b in watch.of.items()))
    print(f"index {state['index_bytes'] / 1e6:.0f} MB")
    for number in (1, options.pages // 2, options.pages):
        found = ask("POST", "/bench/search", json={"query": f"marker{number}x", "ways": "words"}).json()["passages"]
        assert found, number
        assert found[0]["path"].endswith(f"volume{(number - 1) // PER_FILE * PER_FILE:06}.pdf"), found[0]
        assert found[0]["page"] == (number - 1) % PER_FILE + 1, found[0]
    times = []
    for question in ("What colour was the whale?", "How is a list sorted?", "Who was the captain of the ship?"):
        for _ in range(3):
            asked = time.monotonic()
            ask("POST", "/bench/search", json={"query": question})
            times.append(time.monotonic() - asked)
    median = sorted(times)[len(times) // 2]
    print(f"a question takes {median * 1000:.0f} ms at the median, {max(times) * 1000:.0f} ms at most")
    target = folder / "volume000000.pdf"
    made.pdf(target, [["A quokka was seen here."]])
    changed = time.monotonic()
    while not ask("POST", "/bench/search", json={"query": "quokka", "ways": "words"}).json()["passages"]:
        time.sleep(0.02)
    print(f"a changed file is found after {time.monotonic() - changed:.2f} s")
    server.stop()


if __name__ == "__main__":
    main()
