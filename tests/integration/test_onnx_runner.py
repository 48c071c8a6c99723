"""The ONNX runner as a real process with the converted bundled model: protocol, prefixes, drafts, faults."""

import asyncio
import json
import os
import signal

import numpy as np
import onnx
import pytest

from engine.core.errors import BadModelFile, ContextOverflow, InputFault, RunnerDied
from engine.core.types import Constraint, Delta, GenerationRequest, SamplingParams
from engine.runner.faults import RequestFailed
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings
from quantize.onnx.folder import convert_gguf
from tests.support.models import onnx_models
from tests.support.runner_calls import answered

CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
GREEDY = SamplingParams(temperature=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, bundled_model):
    path = tmp_path_factory.mktemp("onnx") / "spark"
    convert_gguf(bundled_model, path)
    return path


@pytest.fixture
def copy(folder, tmp_path):
    """A copy of the folder that a test may damage."""
    target = tmp_path / "copy"
    target.mkdir()
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def with_runner(path, work, **settings):
    async def main():
        runner = await RunnerProcess.start("onnx", str(path))
        try:
            given = {"n_ctx": 1024, "n_parallel": 2, "n_threads": 1, **settings}
            facts = await runner.load(LoadSettings(path=str(path), **given))
            return await work(runner, facts)
        finally:
            await runner.stop()

    return asyncio.run(main())


async def collect(runner, prompt, **options):
    request = GenerationRequest(prompt=prompt, **{"sampling": GREEDY, "max_tokens": 24, **options})
    answer = await answered(runner, request)
    return answer.text, answer.ids, answer.done


def test_generation_prefixes_and_structure(folder):
    prompt = CHAT.format("What is a tessera?")

    async def work(runner, facts):
        assert (facts.architecture, facts.n_ctx, facts.backend) == ("llama", 1024, "CPUExecutionProvider")
        first = await collect(runner, prompt)
        again = await collect(runner, prompt)
        longer = await collect(runner, prompt + first[0])
        regex = await collect(runner, "x", constraint=Constraint(kind="regex", source="[a-c]{7}"))
        sampled = [await collect(runner, prompt, sampling=SamplingParams(seed=5, top_p=0.9)) for _ in range(2)]
        stopped = await collect(runner, prompt, stop=(first[0][5:9],))
        pair = await asyncio.gather(collect(runner, prompt), collect(runner, CHAT.format("Other words")))
        return first, again, longer, regex, sampled, stopped, pair

    first, again, longer, regex, sampled, stopped, pair = with_runner(folder, work)
    assert len(first[1]) == 24
    assert first[2].usage.cached_tokens == 0
    gaps = first[2].timings.itl_s
    assert len(gaps) == 3, "the gaps between tokens are measured"
    assert 0 < gaps[0] <= gaps[-1] < 60
    assert again[:2] == first[:2]
    assert again[2].usage.cached_tokens == again[2].usage.prompt_tokens - 1
    assert longer[2].usage.cached_tokens > first[2].usage.prompt_tokens
    assert len(regex[0]) == 7
    assert set(regex[0]) <= set("abc")
    assert sampled[0][:2] == sampled[1][:2]
    assert stopped[0] == first[0][:5]
    assert pair[0][:2] == first[:2]


def test_owners_do_not_share_what_was_computed(folder):
    prompt = CHAT.format("The card number on file is 51844662.")

    async def work(runner, _):
        cached = []
        for owner in ("a", "b", "a", "b", ""):
            _, _, done = await collect(runner, prompt, owner=owner, max_tokens=2)
            cached.append(done.usage.cached_tokens > 0)
        return cached

    assert with_runner(folder, work) == [False, False, True, True, False]


def test_the_first_token_is_llama_cpps(folder, bundled_model):
    async def work(runner, _facts):
        prompt = await runner.tokenize(CHAT.format("What is a tessera?"))
        return prompt, (await collect(runner, prompt, max_tokens=1, logprobs=2))[1]

    prompt, ids = with_runner(folder, work)
    assert ids == [int(onnx_models.llama_logits(bundled_model, prompt).argmax())]


def test_guesses_change_nothing(tmp_path, bundled_model):
    convert_gguf(bundled_model, tmp_path / "all", all_logits=True)
    prompt = "import os\nimport sys\nimport os\nimport sys\n"

    async def work(runner, _facts):
        return [await collect(runner, prompt, max_tokens=80, ignore_eos=True, speculate=s) for s in (False, True)]

    plain, drafted = with_runner(tmp_path / "all", work)
    assert drafted[:2] == plain[:2]
    assert drafted[2].timings.draft_accepted > 10


def test_cancelling_ends_the_work_and_nothing_else(folder):
    async def work(runner, _facts):
        request = GenerationRequest(prompt="Once", sampling=GREEDY, ignore_eos=True, max_tokens=900)
        async for event in runner.generate(request):
            if isinstance(event, Delta):
                break
        long = "word " * 300
        task = asyncio.create_task(collect(runner, long))
        await asyncio.sleep(0)
        task.cancel()
        after = await collect(runner, CHAT.format("Still here?"))
        return after, await runner.stats()

    after, stats = with_runner(folder, work)
    assert len(after[1]) > 0
    assert stats.active == 0


IMPOSSIBLE = (
    ({"sampling": SamplingParams(mirostat=2)}, "mirostat"),
    ({"sampling": SamplingParams(dry_multiplier=0.8)}, "dry_multiplier"),
    ({"lora": (("x", 1.0),)}, "lora"),
    ({"prompt": [99999]}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"sampling": SamplingParams(logit_bias={99999: 1.0})}, "logit_bias"),
)


def test_what_is_not_honoured_and_a_prompt_beyond_the_context_are_refused(folder):
    async def work(runner, _facts):
        for options, param in IMPOSSIBLE:
            with pytest.raises(InputFault) as caught:
                await collect(runner, **{"prompt": "Hello", **options})
            assert caught.value.param == param
        with pytest.raises(ContextOverflow) as overflow:
            await collect(runner, [300] * 2000)
        assert (overflow.value.prompt_tokens, overflow.value.context_tokens) == (2000, 1024)

    with_runner(folder, work)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="POSIX signals")
def test_a_killed_runner_is_known_and_replaced(folder):
    async def work(runner, _facts):
        request = GenerationRequest(prompt="Once", sampling=GREEDY, max_tokens=900, ignore_eos=True)
        async for _event in runner.generate(request):
            if runner.alive:
                os.kill(runner.pid, signal.SIGKILL)

    with pytest.raises(RunnerDied, match="killed"):
        with_runner(folder, work)

    async def fine(runner, _facts):
        return await collect(runner, "Once")

    assert with_runner(folder, fine)[1]


def refused(folder):
    async def work(_runner, _facts):
        return None

    with pytest.raises((BadModelFile, RequestFailed)) as caught:
        with_runner(folder, work)
    return str(caught.value)


def test_weights_that_are_no_numbers(copy):
    with (copy / "model.onnx.data").open("r+b") as data:
        size = data.seek(0, 2)
        data.seek(0)
        data.write(np.full(size // 2, np.nan, np.float16).tobytes())
    assert "not a number" in refused(copy)


def test_truncated_external_data(copy):
    with (copy / "model.onnx.data").open("r+b") as data:
        data.truncate(data.seek(0, 2) // 2)
    assert "incomplete" in refused(copy)


def test_missing_external_data(copy):
    (copy / "model.onnx.data").unlink()
    assert "cannot be read" in refused(copy)


def test_a_wrong_type_inside_the_graph(copy):
    model = onnx.load(copy / "model.onnx", load_external_data=False)
    norm = next(t for t in model.graph.initializer if t.name == "blk.0.attn_norm.weight")
    norm.data_type = onnx.TensorProto.INT32  # the same number of bytes, other values
    (copy / "model.onnx").write_bytes(model.SerializeToString())
    assert "ONNX Runtime could not load it" in refused(copy)


def test_huge_shapes(copy):
    model = onnx.load(copy / "model.onnx", load_external_data=False)
    model.graph.initializer[0].dims[:] = [1 << 30, 1 << 30]
    (copy / "model.onnx").write_bytes(model.SerializeToString())
    assert "would take" in refused(copy)


@pytest.mark.parametrize("name", ["tokenizer.json", "model.onnx", "genai_config.json"])
def test_files_of_noise(copy, name):
    (copy / name).write_bytes(b"\xff\x00noise" * 100)
    assert refused(copy)


def test_a_vocabulary_that_does_not_fit(copy):
    config = json.loads((copy / "genai_config.json").read_text())
    config["model"]["vocab_size"] = 9000
    (copy / "genai_config.json").write_text(json.dumps(config))
    assert "9000" in refused(copy)
