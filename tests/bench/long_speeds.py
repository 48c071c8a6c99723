"""Speed of reading and writing at depths up to 128k, next to llama-server's, without hours of reading.

    python -m tests.bench.long_speeds MODEL.gguf --tools FOLDER [--depths 0 8192 16384 32768 65536] [--rounds 2]

512 tokens are computed, and their keys and values repeated at the positions behind them into a file in llama.cpp's
format for sequences. Both sides restore the same file, so each depth costs no more than reading the file. Then
they read 256 tokens more and write 8, several times. Times are those of the computation alone: Tessera's runner in
this process, and llama-server's own `timings`. Only models whose layers all attend to the whole text. FOLDER holds
llama-server of the same llama.cpp. A file has the size of the cache: 7.5 GB for the 0.6B shape at 64k.
"""

import argparse
import ctypes
import statistics
import tempfile
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import httpx2

from engine.runner.llama.native.batch import Batch
from engine.runner.llama.native.model import LoadedModel
from engine.runner.protocol import LoadSettings
from tests.bench.own_side import load_as_chosen
from tests.bench.recording import record
from tests.bench.rival import LlamaServer

START, BLOCK, WRITTEN = 512, 256, 8
HEADER = 12  # bytes: magic, version, number of tokens
CELL = 12  # bytes: position, number of sequences, sequence
Speeds = dict[int, dict[str, list[float]]]


def tokens(start: int, length: int, seed: int = 0) -> list[int]:
    """Token ids that differ between seeds."""
    return [1000 + (seed * 977 + (start + i) * 7) % 5000 for i in range(length)]


def repeated(source: Path, target: Path, times: int) -> None:
    """Write the state of START tokens as one of `times` as many tokens."""
    with source.open("rb") as read, target.open("wb") as write:

        def number(size: int = 4) -> int:
            raw = read.read(size)
            write.write(raw)
            return int.from_bytes(raw, "little")

        write.write(read.read(8))
        assert int.from_bytes(read.read(4), "little") == START
        read.seek(4 * START, 1)
        ids = array("i", tokens(0, times * START))
        write.write(len(ids).to_bytes(4, "little") + ids.tobytes())
        assert number() == 1, "one stream"
        assert int.from_bytes(read.read(4), "little") == START
        read.seek(CELL * START, 1)
        write.write((times * START).to_bytes(4, "little"))
        cells = array("i", (value for position in range(times * START) for value in (position, 1, 0)))
        write.write(cells.tobytes())
        assert number() == 0, "values are not transposed"
        for _ in range(2 * number()):
            _repeat_rows(read, write, number, times)


def _repeat_rows(read: BinaryIO, write: BinaryIO, number: Callable[..., int], times: int) -> None:
    """One layer's keys or values: their type, the bytes of a row, the rows."""
    number()
    rows = read.read(START * number(8))
    write.writelines(rows for _ in range(times))


def states(loaded: LoadedModel, depths: list[int], folder: Path) -> Iterator[tuple[int, Path]]:
    """Files with the states of the depths."""
    first = folder / "first"
    batch = Batch(loaded)
    batch.add_prompt(tokens(0, START), 0, 0, last=True)
    assert batch.decode() == 0
    ids = (ctypes.c_int32 * START)(*tokens(0, START))
    assert loaded.api.llama_state_seq_save_file(loaded.context, str(first).encode(), 0, ids, START)
    for depth in depths:
        file = folder / f"{depth}"
        if depth:
            repeated(first, file, depth // START)
        yield depth, file


def restore(loaded: LoadedModel, file: Path, depth: int) -> None:
    """Put the state into sequence 0."""
    loaded.api.llama_memory_seq_rm(loaded.memory, 0, -1, -1)
    if depth:
        room, found = (ctypes.c_int32 * depth)(), ctypes.c_size_t()
        path = str(file).encode()
        assert loaded.api.llama_state_seq_load_file(loaded.context, path, 0, room, depth, ctypes.byref(found))
        assert found.value == depth


def here(loaded: LoadedModel, depth: int, rounds: int) -> dict[str, list[float]]:
    """Tokens per second of prefill and decode after the depth, in this process."""

    def seconds(lengths: list[int]) -> float:
        batch, position, started = Batch(loaded), depth, time.perf_counter()
        for length in lengths:
            batch.add_prompt(tokens(position, length, seed=1), position, 0, last=True)
            assert batch.decode() == 0
            batch.clear()
            position += length
        taken = time.perf_counter() - started
        loaded.api.llama_memory_seq_rm(loaded.memory, 0, depth, -1)
        return taken

    return {
        "reading": [BLOCK / seconds([BLOCK]) for _ in range(rounds)],
        "writing": [WRITTEN / seconds([1] * WRITTEN) for _ in range(rounds)],
    }


def there(url: str, name: str, depth: int, seeds: Iterable[int]) -> dict[str, list[float]]:
    """The same by llama-server, with its own times, once for each seed."""
    with httpx2.Client(base_url=url, timeout=3600) as client:
        if depth:
            restored = client.post("/slots/0?action=restore", json={"filename": name}).raise_for_status().json()
            assert restored["n_restored"] == depth, restored
        found: dict[str, list[float]] = {"reading": [], "writing": []}
        for seed in seeds:
            body = {"prompt": tokens(0, depth) + tokens(depth, BLOCK, seed), "n_predict": WRITTEN + 1}
            body |= {"ignore_eos": True, "temperature": 0, "cache_prompt": True, "id_slot": 0}
            timings = client.post("/completion", json=body).raise_for_status().json()["timings"]
            assert BLOCK <= timings["prompt_n"] <= BLOCK + 1, timings
            found["reading"].append(timings["prompt_per_second"])
            found["writing"].append(timings["predicted_per_second"])
    return found


def ours(given: argparse.Namespace, folder: Path) -> Speeds:
    """Tessera's speeds; the files of the states stay for llama-server."""
    cells = max(given.depths) + 1024
    settings = LoadSettings(
        path=str(given.model), n_ctx=cells, kv_cells=cells, n_parallel=1, n_batch=512, n_ubatch=512,
        n_threads=given.threads, n_threads_batch=given.threads,
    )  # fmt: skip
    loaded, found = load_as_chosen(settings), {}
    try:
        for depth, file in states(loaded, given.depths, folder):
            restore(loaded, file, depth)
            here(loaded, depth, 1)
            found[depth] = here(loaded, depth, given.rounds)
            print(f"Tessera behind {depth}: {found[depth]}", flush=True)
    finally:
        loaded.close()
    return found


def theirs(given: argparse.Namespace, folder: Path) -> Speeds:
    """llama-server's speeds."""
    more = ["--slot-save-path", f"{folder}/"]
    rival = LlamaServer(
        given.tools,
        str(given.model),
        threads=given.threads,
        context=max(given.depths) + 1024,
        parallel=1,
        more=more,
    )
    found = {}
    try:
        there(rival.url, "", 0, [0])
        for depth in given.depths:
            found[depth] = there(rival.url, str(depth), depth, range(1, given.rounds + 1))
            print(f"llama-server behind {depth}: {found[depth]}", flush=True)
    finally:
        rival.stop()
    return found


def main() -> None:
    """One side after the other; each has the machine to itself."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tools", type=Path)
    parser.add_argument("--depths", type=int, nargs="+", default=[0, 8192, 16384, 32768, 65536])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--note", default="", help="about the machine, such as its load")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="long-speeds-") as made:
        sides = {"Tessera": ours(given, Path(made))}
        if given.tools is not None:
            sides["llama-server"] = theirs(given, Path(made))
    for side, speeds in sides.items():
        for depth, measured in speeds.items():
            at = {"model": given.model.stem, "side": side, "depth": depth, "threads": given.threads}
            for metric, values in measured.items():
                middle, ends = round(statistics.median(values), 2), (round(min(values), 2), round(max(values), 2))
                record(
                    "long_speeds", metric, middle, "tokens/s", n=given.rounds, interval=ends, note=given.note, **at
                )


if __name__ == "__main__":
    main()
