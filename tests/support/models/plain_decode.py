"""Plain greedy decoding in a separate process: the reference output for a runner.

    python -m tests.support.models.plain_decode < JOBS > ANSWERS

JOBS: a JSON list of {"path", "prompts": [[token]], "count", "after": [token]}. The result of each job is a list of
runs: one per prompt, and one for a second turn (first prompt, its answer, `after`). A run is a list of [token,
lead]; `lead` is the gap between the best and the second-best logit.
"""

import ctypes
import json
import sys

import numpy as np

from engine.runner.llama.native.llama_api import start_backends

N_CTX = 512


def decode(api, context, n_vocab, tokens, count):
    """Decode one sequence alone: the prompt in one batch, then token by token."""
    api.llama_memory_clear(api.llama_get_memory(context), True)
    run, feed = [], list(tokens)
    for _ in range(count):
        array = (ctypes.c_int32 * len(feed))(*feed)
        if api.llama_decode(context, api.llama_batch_get_one(array, len(feed))) != 0:
            raise SystemExit("llama_decode failed")
        row = np.ctypeslib.as_array(api.llama_get_logits_ith(context, -1), (n_vocab,)).copy()
        row[n_vocab - 1] = -np.inf  # ignore the end-of-text token
        second, best = np.partition(row, -2)[-2:]
        feed = [int(row.argmax())]
        run.append((feed[0], float(best - second)))
    return run


def main():
    api = start_backends()
    answers = []
    for job in json.load(sys.stdin):
        model = api.llama_model_load_from_file(job["path"].encode(), api.llama_model_default_params())
        params = api.llama_context_default_params()
        params.n_ctx = params.n_batch = N_CTX
        params.n_seq_max = 1
        params.type_k = params.type_v = 0  # f32, like the compared runner
        params.flash_attn_type = 0
        params.n_threads = params.n_threads_batch = 1
        context = api.llama_init_from_model(model, params)
        n_vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
        runs = [decode(api, context, n_vocab, prompt, job["count"]) for prompt in job["prompts"]]
        turn = [*job["prompts"][0], *(token for token, _ in runs[0]), *job["after"]]
        answers.append([*runs, decode(api, context, n_vocab, turn, job["count"])])
        api.llama_free(context)
        api.llama_model_free(model)
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
