"""Measures the project index on a real tree: first build, refresh, one edit, context of questions, memory.

python tests/bench/code_index.py FOLDER [PATH_OF_A_FILE_IN_IT]
"""

import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from app.code.assistant import TokenEstimate
from app.code.context.assemble import assemble
from app.code.index.project import ProjectIndex
from app.code.workspace import Workspace

QUESTIONS = (
    "How does the workspace refuse links that lead out of the project?",
    "Where are hunks applied and what happens when two of them overlap?",
    "How does the tokenizer parse a chat template and count tokens in the server?",
    "why is the value of the number of items in the list returned as None by the class",
    "Fix the retry handling of the http client connection pool timeouts",
    "Explain @symbol:Connection and @folder:app",
)


class Peak:
    """Resident bytes of this process and its children, sampled."""

    def __init__(self) -> None:
        self.bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        me = psutil.Process()
        while not self._stop.wait(0.05):
            total = me.memory_info().rss
            for child in me.children():
                try:
                    total += child.memory_info().rss
                except psutil.Error:
                    continue
            self.bytes = max(self.bytes, total)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def main() -> None:
    root = Path(sys.argv[1])
    peak = Peak()
    with tempfile.TemporaryDirectory() as cache:
        index = ProjectIndex(Workspace(root), Path(cache))
        begun = time.perf_counter()
        done = index.refresh()
        print(
            f"first index: {done.num_files} files in {time.perf_counter() - begun:.1f} s",
            index.database.num_chunks(),
            "chunks",
        )
        begun = time.perf_counter()
        index.refresh()
        print(f"refresh without changes: {(time.perf_counter() - begun) * 1000:.0f} ms")
        path = sys.argv[2] if len(sys.argv) > 2 else index.database.paths()[0]
        times = []
        for _ in range(20):
            begun = time.perf_counter()
            index.update([path])
            times.append((time.perf_counter() - begun) * 1000)
        print(f"one file again: p50 {statistics.median(times):.1f} ms, worst {max(times):.1f} ms")
        times = []
        for question in QUESTIONS:
            for _ in range(5):
                begun = time.perf_counter()
                assemble(index, question, 6000, TokenEstimate())
                times.append((time.perf_counter() - begun) * 1000)
        print(f"context of a question: p50 {statistics.median(times):.1f} ms, worst {max(times):.1f} ms")
        size = sum(file.stat().st_size for file in Path(cache).rglob("*") if file.is_file())
        index.close()
    peak.stop()
    print(f"peak memory with parsers: {peak.bytes / 1e6:.0f} MB; index on disk: {size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
