"""A real model's output in Tessera and in llama.cpp's own programs: greedy answers and perplexity.

The recording is made by tests/optin/record_llama_server.py, which contains its command.
"""

import hashlib
import json
import math
from pathlib import Path

import pytest

from engine.core.types import Delta, GenerationRequest
from installers.bootstrap import kernels
from tests.support.models.against_recording import compare, vector_features
from tests.support.runner_calls import GREEDY, with_runner

DATA = Path(__file__).resolve().parent.parent / "data" / "real"
RECORDED = json.loads((DATA / "llama_server.json").read_text(encoding="utf-8"))
HELDOUT = DATA.parent.parent.parent / "assets" / "text" / "heldout.txt"
# As recorded: plain attention, one request at a time.
AS_RECORDED = {"flash_attn": "off", "n_threads": 2, "n_ctx": 2048, "kv_cells": 2048, "n_parallel": 1}
WINDOW, CHUNKS = 512, 2
pytestmark = pytest.mark.timeout(900)  # some 20 s each on an idle computer
SAME_KERNELS = vector_features() == RECORDED["cpu"]
# llama-perplexity itself differs by 0.26 % between its kernels for AVX-512 and for AVX2.
ALLOWED = 0.0005 if SAME_KERNELS else 0.006


def test_the_recording_is_of_this_very_model(real_model):
    assert hashlib.sha256(real_model.read_bytes()).hexdigest() == RECORDED["model_sha256"]
    assert len(RECORDED["answers"]) == 40
    lock = Path(kernels.__file__).resolve().parents[1] / "lock" / "llama.txt"
    assert lock.read_text(encoding="utf-8").split()[0] == RECORDED["llama_cpp_python"]


def test_greedy_answers_are_llama_servers(real_model):
    some = RECORDED["answers"][::4]  # every answer takes half a second of CPU
    result = with_runner(real_model, lambda runner: compare(runner, some), **AS_RECORDED)
    assert result.wrong == []
    assert result.tokens > 137
    if SAME_KERNELS:  # nothing may differ at all
        assert result.ties == []
    assert len(result.ties) <= result.tokens // 15


def test_perplexity_is_llama_perplexitys(real_model):
    """The probability of every token of the second half of each window, read as part of the prompt.

    Like llama-perplexity. Tokens decoded one by one use other kernels, which differ by 0.23 %, and the number
    decoded together depends on the machine's speed.
    """

    async def score(runner):
        text = HELDOUT.read_text(encoding="utf-8")[: 6 * WINDOW * CHUNKS]
        tokens = await runner.tokenize(text, add_special=False, parse_special=False)
        assert len(tokens) >= WINDOW * CHUNKS
        nats = []
        for chunk in range(CHUNKS):
            window = tokens[chunk * WINDOW : (chunk + 1) * WINDOW]
            request = GenerationRequest(
                prompt=window, add_special=False, max_tokens=0, sampling=GREEDY, logprobs=0, prompt_logprobs=True,
                cache_prompt=False,
            )  # fmt: skip
            told = [event async for event in runner.generate(request) if isinstance(event, Delta)]
            read = told[0].prompt_logprobs
            assert [entry.token_id for entry in read] == window
            nats += [-entry.logprob for entry in read[WINDOW // 2 + 1 :]]
        return math.exp(sum(nats) / len(nats))

    found = with_runner(real_model, score, **AS_RECORDED)
    assert found == pytest.approx(RECORDED["perplexity"]["perplexity"], rel=ALLOWED)
