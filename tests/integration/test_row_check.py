"""Rows of real answers, recorded by a runner and computed again with the CPU's plain kernels."""

import asyncio

import msgspec
import numpy as np
import pytest

from engine.core.types import GenerationRequest, SamplingParams
from engine.runner.llama.native.llama_api import start_backends
from engine.runner.llama.native.row_check import ROWS, judged
from engine.runner.llama.reference_child import reference_settings
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings, RowsRecorded, SampledRow
from tests.support.models.shapes import shallow, write_shape
from tests.support.models.variants import write_poisoned

pytestmark = pytest.mark.native
PROMPTS = [[3 + (i * step) % 97 for i in range(length)] for step, length in ((1, 20), (5, 300), (7, 60), (11, 9))]


def recorded(path, **settings) -> tuple[LoadSettings, list[RowsRecorded]]:
    """What a runner records while it answers four requests at once, one with a prompt of several ubatches."""
    loaded = LoadSettings(
        path=str(path), n_ctx=1024, kv_cells=2048, n_threads=1, recorded_rows=5, cache_ram_bytes=1 << 24, **settings
    )
    found: list[RowsRecorded] = []

    async def main():
        runner = await RunnerProcess.start("llama", str(path))
        try:
            await runner.load(loaded)
            runner.on_rows_recorded = found.append

            async def answer(prompt):
                request = GenerationRequest(
                    prompt=prompt, max_tokens=24, sampling=SamplingParams(temperature=0), ignore_eos=True
                )
                async for _ in runner.generate(request):
                    pass

            await asyncio.gather(*map(answer, PROMPTS))
            await runner.stats()  # recorded data is sent first
        finally:
            await runner.stop()

    asyncio.run(main())
    return loaded, found


def verdicts(settings, found):
    return [judged(start_backends(), reference_settings(settings), one) for one in found]


@pytest.mark.parametrize(
    ("name", "cache", "attention", "ubatch"),
    [
        ("llama-q4_0", "f16", "on", 64),
        ("llama", "q8_0", "on", 128),
        ("qwen3moe", "q4_0", "on", 64),
        ("gemma3", "f16", "off", 128),
        ("lfm2", "f16", "on", 128),
    ],
)
def test_a_sound_load_raises_no_alarm(tmp_path, name, cache, attention, ubatch):
    path = write_shape(tmp_path / "model.gguf", shallow(name))
    settings, found = recorded(
        path, n_batch=2 * ubatch, n_ubatch=ubatch, type_k=cache, type_v=cache, flash_attn=attention
    )
    assert len(found) == len(PROMPTS)
    assert any(row.sequences > 1 for one in found for row in one.rows)
    assert all(one.rows[-1].position == len(one.tokens) - 1 for one in found)
    assert not any(verdict.wrong for verdict in verdicts(settings, found))


def swapped(row, other):
    """llama.cpp 25992: with several sequences, a row is that of another one."""
    return changed(row, other.token_ids, other.logprobs)


def reserved(row, _other):
    """llama.cpp 26239: one reserved token is the most likely from some depth on."""
    logprobs = np.full(len(row.logprobs) // 4, -12.0, "<f4")
    logprobs[0] = 0.0
    ids = np.frombuffer(row.token_ids, "<i4").copy()
    ids[0] = 24
    return changed(row, ids.tobytes(), logprobs.tobytes())


def mixed_columns(row, _other):
    """llama.cpp 28537: logits without any relation to the text."""
    return changed(row, np.roll(np.frombuffer(row.token_ids, "<i4"), 7).tobytes(), row.logprobs)


def flat(row, _other):
    """llama.cpp 28502: all logits are equal."""
    count = len(row.logprobs) // 4
    return changed(row, row.token_ids, np.full(count, -np.log(4096), "<f4").tobytes())


def changed(row, token_ids, logprobs):
    return type(row)(position=row.position, token_ids=token_ids, logprobs=logprobs)


@pytest.fixture(scope="module")
def answers(bundled_model):
    return recorded(bundled_model)


def test_right_rows_are_computed_once(answers):
    settings, found = answers
    one = max(found, key=lambda each: len(each.rows))
    assert len(one.rows) <= ROWS
    assert one.steps_s > 0
    right = judged(start_backends(), reference_settings(settings), one)
    assert not right.wrong
    assert right.again_nats == 0


@pytest.mark.parametrize("fault", [swapped, reserved, mixed_columns, flat], ids=lambda fault: fault.__name__)
def test_one_wrong_row_among_right_ones_is_found(answers, fault):
    settings, found = answers
    one = max(found, key=lambda each: len(each.rows))
    other = next(each for each in found if each is not one)
    rows = [*one.rows[:-1], fault(one.rows[-1], other.rows[0])]
    wrong = judged(start_backends(), reference_settings(settings), RowsRecorded(tokens=one.tokens, rows=rows))
    assert wrong.wrong
    assert wrong.largest_nats > 0.5
    assert wrong.noise_nats < 0.01


def test_a_row_that_is_not_a_number_is_the_devices_fault_only_if_the_cpu_has_numbers(
    answers, tmp_path, bundled_model
):
    settings, found = answers
    row = SampledRow(position=40, token_ids=b"", logprobs=b"")
    tokens = max((one.tokens for one in found), key=len)[:41]
    undefined = RowsRecorded(tokens=tokens, rows=[row])
    assert judged(start_backends(), reference_settings(settings), undefined).wrong
    path = tmp_path / "poisoned.gguf"
    write_poisoned(bundled_model, path, tokens[30])
    poisoned = msgspec.structs.replace(reference_settings(settings), path=str(path))
    with pytest.raises(ValueError, match="not a number"):
        judged(start_backends(), poisoned, undefined)
