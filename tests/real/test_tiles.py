"""The chat model with Tessera's CPU kernels, if start.py built them: chosen, reported, and correct."""

import pytest

from devices.backends.cpu_kernels import ATTENTION, tiles_library
from devices.backends.libraries import library_folder
from engine.core.types import GenerationRequest
from tests.support.models.against_recording import NEARLY_A_TIE
from tests.support.runner_calls import CHAT, GREEDY, answered, with_runner

NAME = "smollm2-135m-instruct"
pytestmark = pytest.mark.skipif(tiles_library(library_folder()) is None, reason="the kernels were not built here")
QUESTION = "What is the capital of France? Answer in one sentence, and say what it is known for."
LONG = "Rivers, hills and towns of the north were drawn on this map long ago. " * 20


def test_the_server_chooses_them_and_says_why(real_server):
    real_server.ask("Hello!", max_tokens=2)
    key = {"Authorization": f"Bearer {real_server.running.token}"}
    answer = real_server.http.get(f"/tessera/v1/models/{NAME}.gguf/placement", headers=key)
    assert answer.status_code == 200, answer.text
    told = answer.json()["placement"]
    assert told["settings"]["tiles"] == ["Q4_1", "attention"]
    assert any("prompts with Tessera's CPU kernels" in reason for reason in told["reasons"])
    assert any("attention with Tessera's CPU kernels" in reason for reason in told["reasons"])


@pytest.mark.parametrize(("before", "cache"), [("", "q8_0"), (LONG, "f16")], ids=["short", "behind a long text"])
def test_the_same_greedy_answer_as_llama_cpps_kernels_give(real_model, before, cache):
    request = GenerationRequest(prompt=CHAT.format(before + QUESTION), max_tokens=16, sampling=GREEDY, logprobs=2)
    ours, theirs = (
        with_runner(
            real_model,
            lambda runner: answered(runner, request),
            tiles=tiles, flash_attn="on", type_k=cache, type_v=cache, n_ctx=2048,
        )
        for tiles in (("Q4_1", ATTENTION), ())
    )  # fmt: skip
    assert "Paris" in theirs.text or before
    for one, other, ranked in zip(ours.ids, theirs.ids, theirs.logprobs, strict=True):
        first, second = (logprob for _, _, logprob in ranked.top[:2])
        if one != other:
            assert first - second < NEARLY_A_TIE
            return  # what follows is a different text
