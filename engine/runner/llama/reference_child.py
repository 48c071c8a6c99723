"""Child process: computes a model's reference results on the CPU, for the comparison with a device.

Usage: python -m engine.runner.llama.reference_child SETTINGS_JSON TARGET. Prints one JSON line.
"""

import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from devices.atomic_file import write_atomically
from devices.child_command import write_answer
from devices.msgspec_lock import learned
from engine.runner.engine_args import computing
from engine.runner.llama.native import model as llama_model
from engine.runner.llama.native.device_check import Reference, compare_rows, logprob_rows, prompts, reference
from engine.runner.llama.native.llama_api import KernelsMissing, start_backends
from engine.runner.llama.native.scenarios import alone
from engine.runner.llama.native.vocabulary import LlamaVocabulary
from engine.runner.protocol import LoadSettings

CONTEXT = 256
# The texts of the scenarios are about one and a half times as long as those of the device check, whose second
# computation follows; together they must end before the parent gives up.
SLOW_S = 25.0


def reference_settings(settings: LoadSettings) -> LoadSettings:
    """Return settings for the CPU's plain kernels, with as little context as the comparison needs.

    The cache types stay the same: their loss is chosen by the user and not a fault of the device.
    """
    return msgspec.structs.replace(
        settings, n_ctx=min(settings.n_ctx, CONTEXT), kv_cells=0, n_parallel=1, n_gpu_layers=0, devices=(),
        repack=False, tiles=(), flash_attn="on", use_mmap=True, use_mlock=False, lora=(), mtp=False, max_rollback=0,
        draft_path=None, mmproj_path=None, reference_path=None,
        engine_args=computing(settings.engine_args),
    )  # fmt: skip


def compute(api: Any, settings: LoadSettings, n_ctx: int = 0, slow_s: float = SLOW_S) -> Reference:
    """Return the reference, with the noise of the CPU's other attention kernels if the cache type allows it.

    `n_ctx` is the device's context, whose size decides between two sets of rotary factors in LongRoPE models. A CPU
    that takes longer than `slow_s` for the first texts computes none of the scenarios' texts.

    Raises: LoadFailed. ValueError: the CPU's own results are not finite.
    """
    result: Reference | None = None
    plain = settings.type_v in {"f16", "bf16", "f32"}
    for attention in ("on", "off") if plain else ("on",):
        at = msgspec.structs.replace(settings, flash_attn=attention)
        loaded = llama_model.load(api, at, lambda _fraction: True)
        if at.n_ctx <= (short := llama_model.short_rope(loaded)) < n_ctx:
            loaded.close()
            settings = msgspec.structs.replace(settings, n_ctx=short + 1)
            at = msgspec.structs.replace(settings, flash_attn=attention)
            loaded = llama_model.load(api, at, lambda _fraction: True)
        try:
            vocabulary = LlamaVocabulary(api, loaded.vocab)
            if result is None:
                started = time.monotonic()
                result = reference(loaded, vocabulary)
                if time.monotonic() - started <= slow_s:
                    tokens = [token for sequence in prompts(loaded, vocabulary) for token in sequence]
                    result = msgspec.structs.replace(result, alone=alone(loaded, tokens, result))
            else:
                noise = compare_rows(result, logprob_rows(loaded, prompts(loaded, vocabulary)))
                result = msgspec.structs.replace(result, noise_kld_mean=noise.kld_mean, noise_kld_max=noise.kld_max)
        finally:
            loaded.close()
    assert result is not None
    return result


def main() -> int:
    """Write the reference atomically."""
    started = time.monotonic()
    target = Path(sys.argv[2])
    try:
        settings = msgspec.json.decode(sys.argv[1].encode(), type=learned(LoadSettings))
        reference = compute(start_backends(), reference_settings(settings), settings.n_ctx)
        write_atomically(target, msgspec.msgpack.encode(reference), durable=False)
    except (KernelsMissing, llama_model.LoadFailed, msgspec.DecodeError, ValueError, OSError) as error:
        write_answer({"error": str(error)})
        return 0
    write_answer({"rows": reference.rows, "seconds": time.monotonic() - started})
    return 0


if __name__ == "__main__":
    sys.exit(main())
