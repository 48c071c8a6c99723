"""Tests OpenVINO's CPU device: ten prompts compared with llama.cpp's CPU, and every architecture of the matrix.

    tessera kernels install openvino-linux-x86_64-VERSION.tar.xz
    python tests/optin/openvino_trial.py MODEL.gguf [--static] [--only NAME ...]

`--static` compiles graphs of fixed sizes, as for an NPU. Prints one line per model: it runs (the check against the
CPU passed), dispatch refused it, or the check found an error. Exits with 1 on any other result.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from devices.host_real import RealHost
from devices.report import live_report
from engine.core.errors import BadModelFile, RunnerDied, SelfCheckFailed
from engine.core.types import Delta, Done, GenerationRequest, SamplingParams
from engine.placement import openvino
from engine.placement.device_checks import DeviceChecks
from engine.placement.placer import read_shape
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings
from tests.support.models.architectures import ARCHITECTURES, write_architecture

PROMPTS = (
    "The capital of France is", "Water boils at a temperature of", "Once upon a time, in a small village,",
    "def fibonacci(n):\n", "The largest planet of the solar system is", "To make bread you need",
    "1, 2, 3, 4, 5, 6,", "Dear Sir or Madam,\n\nI am writing to", "The French Revolution began in",
    "A good night's sleep is important because",
)  # fmt: skip
TOKENS = 32


class Trial:
    """One machine, its OpenVINO CPU device, and a folder for references."""

    def __init__(self, folder: Path, *, static: bool) -> None:
        self.machine = live_report(RealHost(), None)
        self.device = self.machine.devices[0]
        self.runtime = next(r for r in self.device.runtimes if r.device_name == "openvino:CPU")
        self.checks = DeviceChecks(None, folder)
        self.static = static

    def settings(self, path: str) -> LoadSettings:
        """As placement creates them."""
        base = LoadSettings(path=path, n_ctx=512, n_threads=2, n_threads_batch=2)
        found = openvino.settings_for(base, self.runtime, self.device)
        return msgspec.structs.replace(found, n_batch=512, n_ubatch=512) if self.static else found

    async def check(self, path: str) -> tuple[str, str]:
        """(state, text) of one model."""
        shape, settings = read_shape(path), self.settings(path)
        no = openvino.refusal(shape, settings, self.runtime)
        if no:
            return "refused", no
        to_load = await asyncio.to_thread(self.checks.to_compare, settings, shape, self.machine)
        if to_load.reference_path is None:
            return "no reference", "the CPU could not compute one"
        runner = await RunnerProcess.start("llama", path)
        try:
            facts = await runner.load(to_load)
        except SelfCheckFailed as error:
            return "caught", error.reason
        except (RunnerDied, BadModelFile) as error:
            return "caught", f"it does not load: {error}"[:200]
        finally:
            await runner.stop()
        return "runs", f"KL divergence {facts.device_check.kld_mean:.1e}" if facts.device_check else "not compared"


async def answers(settings: LoadSettings) -> tuple[list[str], float, float]:
    """Greedy texts of the prompts, and tokens per second read and generated."""
    runner = await RunnerProcess.start("llama", settings.path)
    texts, read, wrote, read_s, wrote_s = [], 0, 0, 0.0, 0.0
    try:
        await runner.load(settings)
        for prompt in (*PROMPTS, " ".join(PROMPTS * 4)):
            request = GenerationRequest(
                prompt=prompt, max_tokens=TOKENS, sampling=SamplingParams(temperature=0), cache_prompt=False
            )
            text = ""
            async for event in runner.generate(request):
                if isinstance(event, Delta):
                    text += event.text
                elif isinstance(event, Done):
                    read, read_s = event.usage.prompt_tokens, event.timings.prefill_s
                    wrote, wrote_s = wrote + event.usage.completion_tokens, wrote_s + event.timings.decode_s
            texts.append(text)
    finally:
        await runner.stop()
    return texts[:-1], read / read_s, wrote / wrote_s


async def main() -> int:
    """Run both trials."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--static", action="store_true")
    parser.add_argument("--only", nargs="*")
    options = parser.parse_args()
    bad = 0
    with tempfile.TemporaryDirectory() as name:
        trial = Trial(Path(name), static=options.static)
        print(f"{Path(options.model).name}: {': '.join(await trial.check(options.model))}", flush=True)
        if options.static:
            os.environ["GGML_OPENVINO_FORCE_STATIC"] = "1"
        if not options.only:
            there = await answers(trial.settings(options.model))
            here = await answers(LoadSettings(path=options.model, n_ctx=512, n_threads=2, n_parallel=1))
            same = sum(a == b for a, b in zip(there[0], here[0], strict=True))
            print(f"{same} of {len(PROMPTS)} greedy answers of {TOKENS} tokens are equal")
            for prompt, a, b in zip(PROMPTS, there[0], here[0], strict=True):
                if a != b:
                    print(f"  {prompt!r}\n    openvino: {a!r}\n    cpu:      {b!r}")
            print(f"prompt tok/s {there[1]:.0f} and {here[1]:.0f}, decode tok/s {there[2]:.1f} and {here[2]:.1f}")
        counts: dict[str, int] = {}
        for key in options.only or sorted(ARCHITECTURES):
            path, began = Path(name) / "model.gguf", time.monotonic()
            try:
                write_architecture(path, ARCHITECTURES[key])
                state, words = await trial.check(str(path))
            except Exception as error:
                state, words = "FAULT", f"{type(error).__name__}: {error}"
                bad += 1
            counts[state] = counts.get(state, 0) + 1
            print(f"{key:24} {state:12} {time.monotonic() - began:4.0f} s  {words}", flush=True)
        print(counts)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
