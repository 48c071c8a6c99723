"""Run a prompt with images through libmtmd's helper, alone and greedily: the reference for the runner.

`python vision_reference.py MODEL PROJECTOR PROMPT COUNT PICTURE...` prints the token ids.
"""

import ctypes
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))


def main() -> None:
    from engine.runner.llama.native.llama_api import start_backends

    model_path, projector, prompt, count, *pictures = sys.argv[1:]
    api = start_backends()
    import llama_cpp.mtmd_cpp as mtmd

    model = api.llama_model_load_from_file(model_path.encode(), api.llama_model_default_params())
    params = api.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch, params.n_threads = 1024, 1024, 512, 1
    params.n_threads_batch = 1
    context = api.llama_init_from_model(model, params)
    options = mtmd.mtmd_context_params_default()
    options.use_gpu, options.n_threads, options.warmup = False, 1, False
    eyes = mtmd.mtmd_init_from_file(projector.encode(), model, options)
    bitmaps = [mtmd.mtmd_helper_bitmap_init_from_file(eyes, p.encode(), False) for p in pictures]
    chunks = mtmd.mtmd_input_chunks_init()
    text = mtmd.mtmd_input_text(prompt.encode(), len(prompt.encode()), True, True)
    array = (ctypes.c_void_p * len(bitmaps))(*bitmaps)
    assert mtmd.mtmd_tokenize(eyes, chunks, ctypes.byref(text), array, len(bitmaps)) == 0
    past = ctypes.c_int32()
    assert mtmd.mtmd_helper_eval_chunks(eyes, context, chunks, 0, 0, 1024, True, ctypes.byref(past)) == 0
    vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
    told = []
    for _ in range(int(count)):
        logits = np.ctypeslib.as_array(api.llama_get_logits_ith(context, -1), (vocabulary,))
        told.append(int(np.argmax(logits)))
        tokens = (ctypes.c_int32 * 1)(told[-1])
        batch = api.llama_batch_get_one(tokens, 1)
        position = (ctypes.c_int32 * 1)(past.value)
        batch.pos = ctypes.cast(position, ctypes.POINTER(ctypes.c_int32))
        assert api.llama_decode(context, batch) == 0
        past.value += 1
    print(*told)


if __name__ == "__main__":
    main()
