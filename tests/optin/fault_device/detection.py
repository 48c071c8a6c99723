"""Opt-in: counts the wrong computations of a device that the comparison with the CPU finds, and its false alarms.

    python tests/optin/fault_device/detection.py [--work FOLDER] [--faults N] [--seed S] [--model FILE ...]

A plugin acts as a GPU and computes wrongly in a random way (kind, operation, shape, how late, how often). A fault
counts if it changes greedy answers to prompts other than the compared ones by more than a sound exchange of
kernels does in that model. Correct loads, over architectures and types, must not be reported as wrong. Needs g++;
the headers come with the locked source.
"""

import argparse
import ctypes
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

import gguf
import msgspec
import numpy as np

from engine.runner.llama.native import device_check, device_verdict
from engine.runner.llama.native.batch import Batch, Logits
from engine.runner.llama.native.llama_api import start_backends
from engine.runner.llama.native.model import load
from engine.runner.llama.native.vocabulary import LlamaVocabulary
from engine.runner.llama.reference_child import compute, reference_settings
from engine.runner.protocol import LoadSettings
from tests.optin.fault_device.plugin import build
from tests.support.models.architectures import ARCHITECTURES, write_architecture

SPARK = ROOT / "assets/models/spark-f16.gguf"
FAMILIES = ("Qwen 3 MoE", "Llama, Mistral", "Gemma 3", "LFM2", "Qwen 3.5")
PROMPTS = (
    "Once upon a time there was a", "The capital of France is", "import numpy as np\n\ndef mean(", "2 + 2 =",
    "Dear Sir or Madam, I am writing to", "Der schnelle braune Fuchs springt", "SELECT name FROM users WHERE",
    "Water boils at a temperature of", "To list the files in a folder, use", "The three primary colours are red,",
)  # fmt: skip
ANSWER_TOKENS = 6
OPERATIONS = (
    "MUL_MAT", "FLASH_ATTN_EXT", "RMS_NORM", "ROPE", "ADD", "MUL", "GLU", "GET_ROWS", "MUL_MAT_ID", "CPY", "",
)  # fmt: skip
# If the two most likely tokens were closer than this, a changed greedy answer is a near tie in every model.
NEAR_NATS = 0.05
LONG_S = 60.0


def random_fault(rng: random.Random) -> str:
    """A fault in the plugin's notation."""
    mode = rng.choice(["scale", "scale", "negate", "zero", "nan", "lane", "rotate", "noise", "noise"])
    amounts = {
        "scale": rng.choice([0, 0.5, 0.9, 0.97, 1.03, 1.1, 2, 10]),
        "lane": rng.randrange(32),
        "noise": rng.choice([0.01, 0.03, 0.1, 0.3, 1]),
    }
    fields = {
        "mode": mode,
        "amount": amounts.get(mode, 0),
        "op": rng.choice(OPERATIONS),
        "rows": rng.choice(["", "", "one", "many"]),
        "after": rng.choice([0, 0, 0, 1, 3, 10, 30]),
        "every": rng.choice([1, 1, 1, 2, 5, 20]),
    }
    return ";".join(f"{key}={value}" for key, value in fields.items())


class Device:
    """A model on the fault device, and the CPU's reference."""

    def __init__(self, path: str, plugin: str, cache_type: str) -> None:
        self.api = start_backends()
        self._silence = self.api.llama_log_callback(lambda _level, _text, _data: None)
        self.api.llama_log_set(self._silence, ctypes.c_void_p(None))
        self.api._lib.ggml_backend_load.restype = ctypes.c_void_p
        assert self.api._lib.ggml_backend_load(plugin.encode())
        self.plugin = ctypes.CDLL(plugin)
        self.plugin.fault_device_count.restype = ctypes.c_long
        settings = LoadSettings(
            path=path, n_ctx=256, n_parallel=1, n_threads=1, n_threads_batch=1, devices=("Fault0",),
            n_gpu_layers=999, flash_attn="on", type_k=cache_type, type_v=cache_type,
        )  # fmt: skip
        self.reference = compute(self.api, reference_settings(settings))
        plain = msgspec.structs.replace(settings, flash_attn="off" if cache_type == "f16" else "on")
        self._load(plain)
        other = self.answers()
        self.loaded.close()
        self._load(settings)
        clean = self.answers()
        assert clean is not None
        self.clean = clean
        # The largest margin that other, correct attention kernels overturn: smaller changes are harmless.
        self.near_nats = max(NEAR_NATS, harm(clean, other))

    def _load(self, settings: LoadSettings) -> None:
        self.loaded = load(self.api, settings, lambda _fraction: True)
        self.vocabulary = LlamaVocabulary(self.api, self.loaded.vocab)

    def set(self, fault: str) -> None:
        self.plugin.fault_device_set(fault.encode())

    def check(self) -> tuple[bool, dict[str, Any] | None]:
        try:
            found = device_verdict.checked(self.reference, self.loaded, self.vocabulary)
        except device_check.DeviceWrong as error:
            self.api.llama_memory_clear(self.loaded.memory, True)
            return True, msgspec.structs.asdict(error.found) | {"said": str(error)} if error.found else None
        return False, msgspec.structs.asdict(found)

    def answers(self) -> list[list[tuple[int, float]]] | None:
        """Greedy tokens with the margin to the second; None if they are not numbers."""
        batch, logits, found = Batch(self.loaded), Logits(self.loaded), []
        try:
            for text in PROMPTS:
                tokens = self.vocabulary.tokenize(text, add_special=True, parse_special=False)[:40]
                batch.add_prompt(tokens, 0, 0, last=True)
                answer = []
                for position in range(len(tokens), len(tokens) + ANSWER_TOKENS):
                    if batch.decode() != 0:
                        return None
                    row = logits.rows(1)[0].copy()
                    batch.clear()
                    if not np.isfinite(row.max()):
                        return None
                    second, first = np.sort(row)[-2:]
                    answer.append((int(row.argmax()), float(first - second)))
                    batch.add(answer[-1][0], position, 0)
                batch.clear()
                self.api.llama_memory_clear(self.loaded.memory, True)
                found.append(answer)
            return found
        finally:
            self.api.llama_memory_clear(self.loaded.memory, True)


def harm(clean: list[list[tuple[int, float]]], found: list[list[tuple[int, float]]] | None) -> float:
    """The largest overturned margin in nats; 0 if every token is the same."""
    if found is None:
        return 99.0
    lost = 0.0
    for right, wrong in zip(clean, found, strict=True):
        for (token, margin), (other, _) in zip(right, wrong, strict=True):
            if token != other:
                lost = max(lost, margin)
                break
    return lost


def child(path: str, plugin: str, cache_type: str, faults: list[str]) -> None:
    """Print one JSON line: the right load's check, then one for each fault."""
    device = Device(path, plugin, cache_type)
    device.set("")
    wrong, numbers = device.check()
    noise, near = device.reference.noise_kld_mean, device.near_nats
    # A real device differs slightly, and then its operations are checked too: they must also be correct.
    named = device_verdict.wrong_operations(device.loaded, device.vocabulary, seconds=LONG_S)
    right = not wrong and not named
    print(json.dumps({"right": right, "check": numbers, "noise": noise, "near": near, "named": named}), flush=True)
    for fault in faults:
        device.set(fault)
        caught, numbers = device.check()
        reached = device.plugin.fault_device_count()
        if reached:
            device.set(fault)
        lost = harm(device.clean, device.answers()) if reached else 0.0
        line = {"fault": fault, "reached": bool(reached), "caught": caught, "harm": lost, "near": near}
        line["check"] = numbers
        print(json.dumps(line), flush=True)


def run(path: Path, plugin: Path, cache_type: str, faults: list[str]) -> list[dict[str, Any]]:
    """The lines of a child; a fault that ends the process counts as a dead runner, and the others continue."""
    lines: list[dict[str, Any]] = []
    left = faults
    while True:
        command = [sys.executable, __file__, "--child", str(path), str(plugin), cache_type]
        done = subprocess.run(command, input=json.dumps(left), capture_output=True, text=True, check=False)
        found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if not found:
            raise RuntimeError(f"{path}: the load failed: {done.stderr[-500:]}")
        lines += [{**line, "model": path.name, "cache": cache_type} for line in found[0 if not lines else 1 :]]
        tried = len(found) - 1
        if done.returncode == 0:
            return lines
        dead = {
            "model": path.name,
            "fault": left[tried],
            "reached": True,
            "caught": True,
            "harm": 99.0,
            "near": 0.0,
        }
        lines.append(dead)
        left = left[tried + 1 :]


def typed_copies(folder: Path) -> list[Path]:
    """The bundled model in types whose rows fit its width, made by gguf's own quantizers."""
    reader = gguf.GGUFReader(SPARK)
    kinds = gguf.GGMLQuantizationType
    made = []
    for kind in (kinds.Q8_0, kinds.Q4_0, kinds.Q4_1, kinds.Q5_0, kinds.Q5_1, kinds.BF16, kinds.F32):
        target = folder / f"spark-{kind.name}.gguf"
        writer = gguf.GGUFWriter(target, "llama")
        for name, field in reader.fields.items():
            if name.startswith("GGUF.") or name == "general.architecture":
                continue
            inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], inner)
        for tensor in reader.tensors:
            shape = [int(n) for n in reversed(tensor.shape)]
            values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(shape)
            whole = len(shape) == 2 and shape[1] % 32 == 0 and tensor.tensor_type != kinds.F32
            data = gguf.quantize(values, kind) if whole else values
            writer.add_tensor(tensor.name, data, raw_dtype=kind if whole else kinds.F32)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        made.append(target)
    return made


def main() -> int:
    """Correct loads, then faults; prints the table."""
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:5], json.loads(sys.stdin.read()))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "fault_device")
    parser.add_argument("--faults", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=10, help="random weights of each architecture")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", type=Path, action="append", default=[])
    options = parser.parse_args()
    plugin = build(options.work)
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        typed = typed_copies(folder)
        families = [
            write_architecture(folder / f"{ARCHITECTURES[f].arch}.gguf", ARCHITECTURES[f]) for f in FAMILIES
        ]
        rights = [line for path in [SPARK, *typed, *options.model] for kv in ("f16", "q8_0", "q4_0")
                  for line in run(path, plugin, kv, [])]  # fmt: skip
        for seed in range(options.seeds):
            for architecture in ARCHITECTURES.values():
                if not architecture.encoder and architecture.arch != "t5":
                    path = write_architecture(folder / "any.gguf", architecture, seed)
                    rights += run(path, plugin, "f16", [])
        wrongly = [line for line in rights if not line["right"]]
        print(f"right loads {len(rights)}, called wrong {len(wrongly)}", flush=True)
        for line in wrongly:
            print("  ", line)
        models = [SPARK, *typed[:2], *families, *options.model]
        share = options.faults // len(models)
        lines = [
            line
            for path in models
            for line in run(path, plugin, "f16", [random_fault(rng) for _ in range(2 * share)])
            if line.get("reached")
        ]
    for name, least in (("at all", 0.0), ("beyond near ties", 1.0), ("by twice that", 2.0)):
        harmful = [line for line in lines if line["harm"] > least * line["near"]]
        caught = sum(line["caught"] for line in harmful)
        print(f"answers changed {name}: {len(harmful)}, caught {caught} ({caught / max(1, len(harmful)):.4f})")
    missed = sorted(
        (li for li in lines if li["harm"] > li["near"] and not li["caught"]), key=lambda li: -li["harm"]
    )
    for line in missed[:20]:
        print("  missed:", line)
    (options.work / "detection.json").write_text(json.dumps({"rights": rights, "faults": lines}), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
