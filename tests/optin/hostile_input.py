"""Sends hostile input for any length of time.

`python -m tests.optin.hostile_input mutations [COUNT] [SEED] [MINUTES] [NAME]`: COUNT mutated inputs for every
reader of foreign bytes whose name contains NAME, at most MINUTES each. Anything but a value or the reader's
documented refusals is a failure, and so is an input that takes a second of CPU time. A failing input is written to
the current folder.

`python -m tests.optin.hostile_input loads [COUNT] [SEED] [MINUTES]`: COUNT damaged models, requested from a real
server. Each must be answered or refused by name; the server must stay unchanged, and no process may remain.

Both print the inputs and the results by class.
"""

import itertools
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import httpx2
import msgspec
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.optin.fuzz_headers import Memory, gguf_seeds, mutate, safetensors_seeds
from tests.optin.hostile_readers import folders, single_files
from tests.support.servers import RunningServer

SLOWEST_S = 1.0
BATCH = 20
SPARK = Path("assets/models/spark-f16.gguf")


class Scratch:
    """Bytes as a file, for readers that need a path; in memory if there is such a folder."""

    def __init__(self, name):
        shared = Path("/dev/shm")
        self.folder = Path(tempfile.mkdtemp(dir=shared if shared.is_dir() else None))
        self.path = self.folder / name

    def __call__(self, raw):
        self.path.write_bytes(raw)
        return self.path


def onnx_graph():
    from onnx import TensorProto, helper

    weight = helper.make_tensor("w", TensorProto.FLOAT, [2, 2], [1.0, 2.0, 3.0, 4.0])
    outside = TensorProto(name="far", data_type=TensorProto.FLOAT, dims=[4])
    outside.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "far.bin"), ("offset", "0"), ("length", "16")):
        outside.external_data.add(key=key, value=value)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Add", ["y", "far"], ["z"])]
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2])
    last = helper.make_tensor_value_info("z", TensorProto.FLOAT, [1, 2])
    return helper.make_model(helper.make_graph(nodes, "g", [value], [last], [weight, outside])).SerializeToString()


def table():
    from devices.errors import TesseraError
    from engine.api.receipts import Receipt
    from engine.core.json_store import CorruptStateFile, JsonStore
    from engine.onnx.safety import check_graph
    from engine.runner.protocol import Cancel as RunnerCancel
    from engine.runner.protocol import Fault, FrameReader, decode_from_runner, decode_to_runner, frame
    from engine.server.body import check_counts
    from quantize.errors import BadFile
    from quantize.files.gguf_file import read_gguf_source
    from quantize.files.imatrix import read_imatrix
    from quantize.files.safetensors_file import read_safetensors_source

    graph, state, matrix = Scratch("model.onnx"), Scratch("state.json"), Scratch("imatrix.gguf")
    (graph.folder / "far.bin").write_bytes(b"\0" * 16)

    def store(raw):
        return JsonStore(state(raw), dict[str, int], dict).read()

    def frames(raw):
        for body in FrameReader().feed(raw):
            decode_from_runner(body)
        decode_to_runner(raw)

    wire = frame(Fault(code="x", message="y", id=3, facts={"a": 1})) + frame(RunnerCancel(id=9))
    some = {"version": 1, "data": {"a": 1, "b": 2}}
    found = {
        "gguf header": (lambda raw: read_gguf_source(Memory(raw)), gguf_seeds(), BadFile),
        "safetensors header": (lambda raw: read_safetensors_source(Memory(raw)), safetensors_seeds(), BadFile),
        "onnx graph": (lambda raw: check_graph(graph(raw), graph.folder), [onnx_graph()], TesseraError),
        "importance matrix": (lambda raw: read_imatrix(matrix(raw)), [imatrix_seed()], TesseraError),
        "state file": (store, [json.dumps(some).encode(), b'{"a": 1}'], CorruptStateFile),
        "runner frames": (frames, [wire], (msgspec.MsgspecError, ValueError)),
        "receipt": (
            lambda raw: msgspec.json.decode(raw, type=Receipt),
            [json.dumps(receipt_seed()).encode()],
            (msgspec.DecodeError, UnicodeDecodeError),
        ),
        "request body": (check_counts, [json.dumps({"messages": [{"role": "user", "content": "a"}] * 50}).encode()],
                         TesseraError),
    }  # fmt: skip
    return found | folders() | single_files()


def receipt_seed():
    parts = dict.fromkeys(
        ("file", "template", "plan", "adapters", "engine", "kernels", "driver", "device"), "0" * 64
    )
    told = {"num_chars": 3, "sha256": "0" * 64}
    return {"version": 1, "model": "m", "parts": parts, "plan": {"n_ctx": 1}, "asked": {"prompt": [1, 2]},
            "route": "chat", "body": {"messages": []}, "answer": told}  # fmt: skip


def imatrix_seed():
    import numpy as np

    from quantize.files.imatrix import Importance, write_imatrix

    path = Scratch("seed.gguf").path
    write_imatrix(path, {"blk.0.w": Importance(np.ones((1, 8), np.float32), np.ones(1, np.float32))}, "x", 512)
    return path.read_bytes()


def mutations(count, seed, minutes, only=""):
    failures = 0
    print(f"{'reader':24}{'inputs':>9}{'taken':>9}{'refused':>9}{'slowest ms':>12}", flush=True)
    for name, (read, seeds, refusals) in table().items():
        if only not in name:
            continue
        rng, ended, slowest, made = random.Random(f"{seed} {name}"), Counter(), 0.0, 0
        until = time.monotonic() + minutes * 60
        while made < count and (made % 100 or time.monotonic() < until):
            raw = mutate(rng.choice(seeds), rng)
            made += 1
            started = time.process_time()
            try:
                read(raw)
                ended["taken"] += 1
            except refusals:
                ended["refused"] += 1
            except Exception as error:
                failures += 1
                kept = Path(f"hostile-{name.replace(' ', '-').replace(chr(39), '')}-{seed}-{made}.bin")
                kept.write_bytes(raw)
                print(f"FAILURE {name} input {made}: {type(error).__name__}: {error} ({kept})", flush=True)
                if failures > 20:
                    return failures
            spent = time.process_time() - started
            slowest = max(slowest, spent)
            if spent > SLOWEST_S:
                failures += 1
                print(f"SLOW {name} input {made}: {spent:.2f} s", flush=True)
        print(f"{name:24}{made:9}{ended['taken']:9}{ended['refused']:9}{slowest * 1000:12.1f}", flush=True)
    return failures


def damaged(data, rng):
    """A model that is damaged in one of five ways, and which."""
    header = 400_000
    kind = rng.choice(("header", "header", "number", "weights", "cut", "noise"))
    raw = bytearray(data)
    if kind == "header":
        raw[:header] = mutate(bytes(raw[:header]), rng)
    elif kind == "number":  # lengths stay valid, so more of these reach llama.cpp
        for _ in range(rng.choice((1, 2, 4))):
            at = rng.randrange(8, 4000)
            raw[at : at + 4] = rng.choice((0, 1, 2, 7, 255, 2**31 - 1, 2**32 - 1)).to_bytes(4, "little")
    elif kind == "weights":
        for _ in range(40):
            at = rng.randrange(header, len(raw) - 64)
            raw[at : at + 64] = rng.randbytes(64)
    elif kind == "cut":
        del raw[rng.randrange(1, len(raw)) :]
    else:
        raw = bytearray(rng.randbytes(rng.choice((0, 7, 100, 100_000))))
    return bytes(raw), kind


def loads(count, seed, minutes):
    data, rng = SPARK.read_bytes(), random.Random(seed)
    ended, slowest, failures = Counter(), 0.0, 0
    until = time.monotonic() + minutes * 60
    made = 0
    while made < count and time.monotonic() < until:
        home = Path(tempfile.mkdtemp(prefix="hostile-"))
        (home / "models").mkdir()
        kinds = []
        for index in range(min(BATCH, count - made)):
            raw, kind = damaged(data, rng)
            (home / "models" / f"hostile{index}.gguf").write_bytes(raw)
            kinds.append(kind)
        server = RunningServer(home)
        pid = server.process.pid
        try:
            for index, kind in enumerate(kinds):
                made += 1
                body = {"model": f"hostile{index}.gguf", "prompt": "Hi", "max_tokens": 2}
                body["deterministic"] = index % 4 == 0
                started = time.monotonic()
                answer = httpx2.post(f"{server.url}/v1/completions", json=body, timeout=180)
                slowest = max(slowest, time.monotonic() - started)
                code = "answered" if answer.status_code == 200 else answer.json()["error"]["code"]
                ended[kind, code] += 1
                if answer.status_code == 500 or server.process.poll() is not None:
                    failures += 1
                    shutil.copy(home / "models" / f"hostile{index}.gguf", f"hostile-load-{seed}-{made}.gguf")
                    print(f"FAILURE load {made} ({kind}): {answer.status_code} {answer.text[:300]}", flush=True)
            body = {"model": "spark", "prompt": "Hi", "max_tokens": 2}
            fine = httpx2.post(f"{server.url}/v1/completions", json=body, timeout=180)
            if fine.status_code != 200 or "Traceback" in server.log:
                failures += 1
                print(f"FAILURE after {made}: {fine.status_code} {server.log[-800:]}", flush=True)
            children = psutil.Process(pid).children(recursive=True)
        finally:
            server.stop()
        left = [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
        if left:
            time.sleep(3)
            left = [child for child in left if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
        if left:
            failures += 1
            print(f"FAILURE after {made}: left behind {left}", flush=True)
        shutil.rmtree(home)
        print(f"{made} loads, slowest {slowest:.1f} s, {failures} failures", flush=True)
    for (kind, code), number in sorted(ended.items()):
        print(f"{kind:10}{code:28}{number:6}", flush=True)
    return failures


if __name__ == "__main__":
    what = sys.argv[1] if len(sys.argv) > 1 else ""
    given = dict(itertools.zip_longest(("count", "seed", "minutes"), map(int, sys.argv[2:5]), fillvalue=None))
    usual = {"mutations": (200_000, 1, 60), "loads": (500, 1, 60)}.get(what)
    if usual is None:
        raise SystemExit(__doc__)
    numbers = [
        given.get(name) or default for name, default in zip(("count", "seed", "minutes"), usual, strict=True)
    ]
    bad = {"mutations": mutations, "loads": loads}[what](*numbers, *sys.argv[5:6])
    print(f"{bad} failures")
    raise SystemExit(bool(bad))
