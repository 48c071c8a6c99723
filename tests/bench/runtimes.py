"""llama.cpp and ONNX Runtime on the same weights, alternating: tokens/s, time to first token, memory, logits.

    python tests/bench/runtimes.py chat [--model MODEL.gguf] [--types F16,Q8_0,Q4_0] [--rounds 5] [--threads 1]
    python tests/bench/runtimes.py embed [--rounds 5] [--threads 1,2]

`chat` takes a GGUF file (default: the bundled model), re-quantizes it, converts it and runs both runners as the
server does. `embed` makes an encoder of MiniLM's dimensions (6 layers of 384, 12 heads, random weights) for both.
"""

import argparse
import asyncio
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from engine.core.types import Done, GenerationRequest, SamplingParams
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings
from quantize.onnx.folder import convert_gguf
from tests.support.models import bert_shape, onnx_models
from tests.support.models.onnx_bert import write_onnx_bert

TEXT = (ROOT / "assets" / "text" / "heldout.txt").read_text(encoding="utf-8")


async def started(engine, path, **settings):
    runner = await RunnerProcess.start(engine, str(path))
    before = time.monotonic()
    await runner.load(LoadSettings(path=str(path), n_parallel=1, **settings))
    return runner, time.monotonic() - before


async def generation(runner, prompt, tokens):
    request = GenerationRequest(
        prompt=prompt, sampling=SamplingParams(temperature=0), max_tokens=tokens, ignore_eos=True, speculate=False
    )
    async for event in runner.generate(request):
        if isinstance(event, Done):
            t, usage = event.timings, event.usage
            fresh = usage.prompt_tokens - usage.cached_tokens
            return fresh / t.prefill_s, (usage.completion_tokens - 1) / t.decode_s
    raise AssertionError("no end")


def middle(values):
    return f"{statistics.median(values):8.1f}"


async def chat(source, folder, rounds, threads):
    """Prefill and decode speeds of both, in turns; and memory at the end."""
    runners = {}
    for engine, path in (("llama", source), ("onnx", folder)):
        runners[engine] = await started(engine, path, n_ctx=1024, n_threads=threads, n_threads_batch=threads)
    tokens = (await runners["llama"][0].tokenize(TEXT[:40_000]))[: 512 * (rounds + 1)]
    speeds = {engine: [] for engine in runners}
    for i in range(rounds + 1):
        for engine, (runner, _) in runners.items():
            speeds[engine].append(await generation(runner, tokens[512 * i : 512 * (i + 1)], 128))
    for engine, (runner, load_s) in runners.items():
        rss = (await runner.stats()).rss_bytes / 2**20
        fill, decode = zip(*speeds[engine][1:], strict=True)
        print(
            f"  {engine:6} prefill{middle(fill)} decode{middle(decode)} tok/s, load {load_s:.2f} s, {rss:.0f} MiB"
        )
        await runner.stop()


def run_chat(options):
    for qtype in options.types.split(","):
        with tempfile.TemporaryDirectory() as work:
            source = Path(options.model)
            if qtype != "F16":
                source = onnx_models.requantize(source, Path(work) / "m.gguf", qtype)
            print(f"{qtype}, {options.threads} threads")
            ids = [300 + i * 7 % 5000 for i in range(64)]
            theirs = onnx_models.llama_logits(source, ids)
            for level in (4, 0):
                shutil.rmtree(Path(work) / "onnx", ignore_errors=True)
                convert_gguf(source, Path(work) / "onnx", accuracy_level=level)
                ours = onnx_models.onnx_logits(Path(work) / "onnx", ids)
                match = ours.argmax() == theirs.argmax()
                away = onnx_models.distance(ours, theirs)
                bits = 8 if level else 32
                print(f"  logits against llama.cpp, activations in {bits} bits: {away:.4f}, same best: {match}")
                if level or options.exact:
                    asyncio.run(chat(source, Path(work) / "onnx", options.rounds, options.threads))


async def embed(source, folder, rounds, threads):
    texts = {"1 x 16 words": [" ".join(["one"] * 16)], "32 x 64": [" ".join(["tile w1 w2 w3"] * 16)] * 32}
    runners = {}
    for engine, path in (("llama", source), ("onnx", folder)):
        given = {"n_ctx": 256, "n_threads": threads, "n_threads_batch": threads, "embeddings": True}
        runners[engine] = (await started(engine, path, **given))[0]
    for name, inputs in texts.items():
        times = {engine: [] for engine in runners}
        rows = {}
        for _ in range(rounds + 1):
            for engine, runner in runners.items():
                before = time.monotonic()
                done = await runner.embed(inputs)
                times[engine].append(time.monotonic() - before)
                rows[engine] = np.frombuffer(done.vectors[0], "<f4")
        counts = sum(done.token_counts)
        for engine, seconds in times.items():
            mid = statistics.median(seconds[1:])
            print(f"  {name:12} {engine:6} {1000 * mid:8.2f} ms, {counts / mid:9.0f} tok/s")
        print(f"  {'':12} cosine {float(rows['llama'] @ rows['onnx']):.6f}")
    for engine, runner in runners.items():
        print(f"  {engine} {(await runner.stats()).rss_bytes / 2**20:.0f} MiB")
        await runner.stop()


def run_embed(options):
    bert_shape.EMBD, bert_shape.LAYERS, bert_shape.CONTEXT, bert_shape.FFN = 384, 6, 512, 1536
    bert_shape.HEADS = 12
    with tempfile.TemporaryDirectory() as work:
        source = bert_shape.write_bert(Path(work) / "minilm.gguf")
        folder = write_onnx_bert(source, Path(work) / "minilm", heads=bert_shape.HEADS)
        for threads in map(int, options.threads.split(",")):
            print(f"encoder of MiniLM's dimensions, float32, {threads} threads")
            asyncio.run(embed(source, folder, options.rounds, threads))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    one = kinds.add_parser("chat")
    one.add_argument("--model", default=str(ROOT / "assets" / "models" / "spark-f16.gguf"))
    one.add_argument("--types", default="F16,Q8_0,Q6_K,Q4_0,Q4_K")
    one.add_argument("--threads", type=int, default=1)
    one.add_argument("--exact", action="store_true", help="time 32-bit activations too")
    one.add_argument("--rounds", type=int, default=5)
    two = kinds.add_parser("embed")
    two.add_argument("--threads", default="1,2")
    two.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    (run_chat if options.kind == "chat" else run_embed)(options)


if __name__ == "__main__":
    main()
