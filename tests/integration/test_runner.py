"""The llama.cpp runner as a real process: prefix sharing, speculative decoding, preemption, cancellation."""

import asyncio
import functools
import gc
import json
import sys
from pathlib import Path

import psutil
import pytest

from engine.core.errors import BadModelFile, ContextOverflow, InputFault, RunnerDied
from engine.core.types import Constraint, Delta, GenerationRequest, SamplingParams, Started
from engine.jobs.jobs import Paused
from engine.runner.llama.batch.step_budget import FLUSH_INTERVAL_S
from engine.runner.load_limits import STEADY_ROWS
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings
from tests.support import runner_calls
from tests.support.models.lora_adapter import write_adapter
from tests.support.runner_calls import CHAT, GREEDY, LIKELIEST, answered
from tests.support.servers import runs

# Caches no larger than a test needs.
with_runner = functools.partial(runner_calls.with_runner, kv_cells=0)


async def collect(runner, prompt, **options):
    request = GenerationRequest(prompt=prompt, **{"sampling": GREEDY, "max_tokens": 40, **options})
    answer = await answered(runner, request)
    return answer.text, answer.ids, answer.done


def test_guessing_ahead_changes_nothing_but_the_speed(bundled_model):
    """`True` drafts always; measured costs on this machine only decide for `None`."""
    prompts = ["import os\nimport sys\nimport os\nimport sys\n", CHAT.format("Tell me a story."), "a b c " * 50]

    async def work(runner):
        pairs = []
        for prompt in prompts:
            options = {"max_tokens": 150, "ignore_eos": True}
            pairs.append(
                (
                    await collect(runner, prompt, speculate=False, **options),
                    await collect(runner, prompt, speculate=True, **options),
                )
            )
        return pairs

    pairs = with_runner(bundled_model, work)
    for plain, drafted in pairs:
        assert drafted[0] == plain[0]
        assert drafted[1] == plain[1]
        assert drafted[2].usage.completion_tokens == 150
    assert sum(g[2].timings.draft_accepted for _, g in pairs) > 50


def test_guessing_keeps_a_seeded_sample(bundled_model):
    async def work(runner):
        options = {"max_tokens": 120, "sampling": SamplingParams(temperature=0.7, top_k=5, seed=4)}
        prompt = "import os\nimport sys\n" * 6
        await collect(runner, prompt, **options)
        return [await collect(runner, prompt, speculate=s, **options) for s in (False, True)]

    plain, drafted = with_runner(bundled_model, work)
    assert drafted[0] == plain[0]


def test_what_a_grammar_forces_is_drafted_and_changes_nothing(bundled_model):
    names = ["date_of_birth", "preferred_language", "shipping_address"]
    schema = {
        "type": "object",
        "properties": {name: {"type": "string", "maxLength": 6} for name in names},
        "required": names,
        "additionalProperties": False,
    }
    constraint = Constraint(kind="json_schema", source=json.dumps(schema))

    async def work(runner):
        options = {"max_tokens": 200, "constraint": constraint}
        return [
            await collect(runner, CHAT.format("Who are you?"), speculate=s, **options) for s in (False, True, None)
        ]

    plain, asked, undecided = with_runner(bundled_model, work)
    assert list(json.loads(plain[0])) == names
    assert asked[:2] == undecided[:2] == plain[:2]
    # The text between the names does not repeat, so accepted drafts came from the grammar.
    assert asked[2].timings.draft_accepted > 15


def test_a_rejected_guess_leaves_no_trace_in_the_cache(bundled_model):
    async def work(runner):
        prompt = "x = 1\ny = 2\nx = 1\ny = "
        first = await collect(runner, prompt, max_tokens=60, ignore_eos=True, sampling=LIKELIEST)
        longer = prompt + first[0] + "\nprint("
        reused = await collect(runner, longer, max_tokens=30, sampling=LIKELIEST)
        return longer, reused

    longer, reused = with_runner(bundled_model, work)
    fresh = with_runner(bundled_model, lambda r: collect(r, longer, max_tokens=30))
    assert reused[2].usage.cached_tokens > 30
    assert reused[0] == fresh[0]


def test_answers_are_told_at_the_rate_of_a_display(bundled_model):
    """Hundreds of tokens per second arrive in tens of deltas; the first comes alone and at once. None is lost."""

    async def work(runner):
        request = GenerationRequest(prompt="Once", sampling=GREEDY, max_tokens=300, ignore_eos=True)
        events = [event async for event in runner.generate(request)]
        return [len(event.token_ids) for event in events if isinstance(event, Delta)], events[-1]

    deltas, done = with_runner(bundled_model, work)
    assert sum(deltas) == done.usage.completion_tokens == 300
    assert deltas[0] == 1
    assert len(deltas) <= done.timings.decode_s / FLUSH_INTERVAL_S + 3


def test_a_small_cache_preempts_and_loses_nothing(bundled_model):
    """Two answers of 700 tokens in 1,100 cells, which admission considers enough for both, and one that waits."""
    lengths = {"Tell me a story.": 700, "What is a token?": 700, "Hello": 100}
    asked = [(CHAT.format(question), length) for question, length in lengths.items()]
    # These requests need not repeat bit for bit, so it does not matter whether one runs alone.
    options = {"ignore_eos": True, "speculate": False, "priority": "background"}

    async def together(runner):
        answers = await asyncio.gather(*(collect(runner, p, max_tokens=n, **options) for p, n in asked))
        return answers, (await runner.stats()).steps

    async def alone(runner):
        return [await collect(runner, p, max_tokens=n, **options) for p, n in asked]

    answers, steps = with_runner(bundled_model, together, kv_cells=1100, **runner_calls.EXACT)
    quiet = with_runner(bundled_model, alone, kv_cells=1100, **runner_calls.EXACT)
    assert [text for text, _, _ in answers] == [text for text, _, _ in quiet]
    assert [len(ids) for _, ids, _ in answers] == [700, 700, 100]
    assert steps < 2 * 700, "two were begun at once"
    assert steps > 700 + 50, "and one of them had to go, for there are no cells for both"


def test_a_prompt_that_fills_the_cache_displaces_idle_prefixes(bundled_model):
    async def scenario(runner):
        tokens = await runner.tokenize("".join(f"value_{n} = {n}\n" for n in range(400)))
        await collect(runner, tokens[:10], max_tokens=12, ignore_eos=True)
        await collect(runner, tokens[:20], max_tokens=8, ignore_eos=True)
        return await collect(runner, tokens[:1016], max_tokens=4, ignore_eos=True)

    _, ids, done = with_runner(bundled_model, scenario, n_ctx=1024)
    assert len(ids) == 4
    assert done.usage.prompt_tokens == 1016


def test_a_shared_prefix_is_copied_from_a_running_sequence(bundled_model):
    prefix = "You are a careful assistant. " * 20

    async def work(runner):
        first = runner.generate(GenerationRequest(prompt=prefix + "One", max_tokens=500, ignore_eos=True))
        async for event in first:
            if isinstance(event, Delta):
                break
        async for event in runner.generate(GenerationRequest(prompt=prefix + "Two", max_tokens=2)):
            if isinstance(event, Started):
                started = event
        await first.aclose()
        return started

    started = with_runner(bundled_model, work, kv_cells=4096)
    assert started.cached_tokens > 0.9 * started.prompt_tokens - 2


def test_cancelling_a_long_prefill_returns_at_once_and_the_runner_goes_on(bundled_model):
    async def work(runner):
        long = list(range(300, 8000)) * 8
        generation = runner.generate(GenerationRequest(prompt=long, max_tokens=1))
        first = await anext(generation)
        assert isinstance(first, Started)
        await generation.aclose()
        after = await asyncio.wait_for(collect(runner, CHAT.format("Hi"), max_tokens=5), 20)
        stats = await runner.stats()
        return after, stats

    after, stats = with_runner(bundled_model, work, n_ctx=70_000, n_parallel=2)
    assert after[2].usage.completion_tokens > 0
    assert stats.active == 0


def test_cancelling_stops_within_one_ubatch(bundled_model):
    """120 ubatches in a single decode: only complete ones, computed before the cancellation, are kept."""
    prompt = list(range(300, 8000)) * 8

    async def work(runner):
        task = asyncio.ensure_future(collect(runner, prompt, max_tokens=1, sampling=LIKELIEST))
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for _ in range(400):
            stats = await asyncio.wait_for(runner.stats(), 20)
            if not stats.active:
                return stats
            await asyncio.sleep(0.05)
        raise AssertionError(stats)

    stats = with_runner(bundled_model, work, n_ctx=65_536, n_batch=65_536, n_parallel=1)
    assert stats.steps == 0
    assert stats.kv_cells_used % 512 == 0
    assert stats.kv_cells_used < len(prompt) / 2


def test_control_tokens_are_hidden_unless_wanted(bundled_model):
    async def work(runner):
        prompt = "<|im_start|>user\nHi<|im_end|>\n"
        bias = SamplingParams(temperature=0, logit_bias={1: 100.0})
        hidden = await collect(runner, prompt, max_tokens=3, sampling=bias)
        shown = await collect(runner, prompt, max_tokens=3, sampling=bias, keep_special=True)
        return hidden, shown

    hidden, shown = with_runner(bundled_model, work)
    assert hidden[1] == shown[1]
    assert "<|im_start|>" not in hidden[0]
    assert "<|im_start|>" in shown[0]


IMPOSSIBLE = (
    (GenerationRequest(prompt=[]), InputFault),
    (GenerationRequest(prompt=[-1]), InputFault),
    (GenerationRequest(prompt=[10**6]), InputFault),
    (GenerationRequest(prompt=[1], sampling=SamplingParams(logit_bias={10**6: 1.0})), InputFault),
    (GenerationRequest(prompt=[5] * 1024), ContextOverflow),
)


def test_what_would_end_the_process_is_refused_before(bundled_model):
    async def work(runner):
        for request, error in IMPOSSIBLE:
            with pytest.raises(error):
                await answered(runner, request)
            assert (await collect(runner, "x", max_tokens=2))[2].finish_reason in ("length", "stop"), request

    with_runner(bundled_model, work)


@pytest.mark.parametrize(
    "settings",
    [
        {"type_k": "q3"},
        {"type_v": "q8_0", "flash_attn": "off"},
        {"n_parallel": 0},
        {"n_ubatch": 4096},
        {"n_ctx": 0},
        {"devices": ("Vulkan7",)},
    ],
)
def test_settings_that_cannot_work_are_refused(bundled_model, settings):
    with pytest.raises(BadModelFile):
        with_runner(bundled_model, lambda r: collect(r, "x"), **settings)


def test_a_quantized_cache_works(bundled_model):
    plain = with_runner(bundled_model, lambda r: collect(r, CHAT.format("What is a token?")))
    small = with_runner(
        bundled_model, lambda r: collect(r, CHAT.format("What is a token?")), type_k="q8_0", type_v="q8_0"
    )
    assert small[0][:20] == plain[0][:20]


def test_a_file_that_is_no_model_is_refused_and_the_reason_known(tmp_path):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF" + b"\x00" * 100)
    with pytest.raises((BadModelFile, RunnerDied)):
        with_runner(bad, lambda r: collect(r, "x"))


def test_tokens_and_pieces_round_trip(bundled_model):
    text = "Grüße, 世界! <|im_end|> <tool_call>"

    async def work(runner):
        ids = await runner.tokenize(text, add_special=False)
        return ids, b"".join(await runner.detokenize(ids))

    ids, raw = with_runner(bundled_model, work)
    assert raw.decode() == text
    assert 2 in ids


def whole_steps(answer):
    """Tokens that a repeatable request reuses of a completely cached prompt."""
    return (answer[2].usage.prompt_tokens - 1) // STEADY_ROWS * STEADY_ROWS


def test_a_conversation_survives_the_restart_of_its_runner(bundled_model, tmp_path):
    store = {"cache_dir": str(tmp_path), "cache_disk_bytes": 1 << 30}
    prompt = CHAT.format("Explain what a file is. " * 15)
    first = with_runner(bundled_model, lambda r: collect(r, prompt), **store)
    assert list(tmp_path.glob("*/*.kv"))
    second = with_runner(bundled_model, lambda r: collect(r, prompt), **store)
    assert second[2].usage.cached_tokens == whole_steps(second)
    assert second[0] == first[0]


def test_a_damaged_stored_prefix_is_computed_again(bundled_model, tmp_path):
    store = {"cache_dir": str(tmp_path), "cache_disk_bytes": 1 << 30}
    prompt = CHAT.format("Explain what a file is. " * 15)
    first = with_runner(bundled_model, lambda r: collect(r, prompt), **store)
    for file in tmp_path.glob("*/*.kv"):
        data = bytearray(file.read_bytes())
        data[-1] ^= 255
        file.write_bytes(data)
    second = with_runner(bundled_model, lambda r: collect(r, prompt), **store)
    assert second[2].usage.cached_tokens == 0
    assert second[0] == first[0]


def test_what_was_evicted_comes_back_from_memory(bundled_model):
    """A cache for one prompt only: the first must be offloaded for the second, and restored for the third."""
    one, two = (CHAT.format(f"{word} " * 500) for word in ("red", "blue"))

    async def work(runner):
        first = await collect(runner, one, max_tokens=8)
        await collect(runner, two, max_tokens=8)
        again = await collect(runner, one, max_tokens=8)
        return first, again, await runner.stats()

    first, again, stats = with_runner(bundled_model, work, cache_ram_bytes=1 << 28, n_parallel=1)
    assert again[2].usage.cached_tokens == whole_steps(again)
    assert again[0] == first[0]
    assert stats.cache_ram_bytes > 0


def test_idle_prefixes_leave_the_cells_and_come_back(bundled_model):
    """Every step iterates over idle cells, so idle prefixes are copied out; a later turn loses nothing."""
    one, two = (CHAT.format(f"{word} " * 300) for word in ("red", "blue"))

    async def work(runner):
        first = await collect(runner, one, max_tokens=8)
        await asyncio.sleep(0.5)  # a pause between turns, long enough for a busy machine to use it
        while not (await runner.stats()).cache_ram_bytes:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.5)
        await collect(runner, two, max_tokens=8)
        between = await runner.stats()
        again = await collect(runner, one, max_tokens=8)
        return first, between, again

    first, between, again = with_runner(bundled_model, work, cache_ram_bytes=1 << 28)
    assert between.kv_cells_used <= first[2].usage.prompt_tokens + 8
    assert again[2].usage.cached_tokens == whole_steps(again)
    assert again[0] == first[0]


def test_background_requests_do_not_evict_the_chat(bundled_model):
    chat = CHAT.format("Explain what a file is. " * 15)

    async def work(runner):
        await collect(runner, chat, max_tokens=4)
        for i in range(20):
            await collect(runner, CHAT.format(f"Title {i}? " * 20), max_tokens=2, priority="background")
        return await collect(runner, chat, max_tokens=4)

    back = with_runner(bundled_model, work, n_parallel=1)
    assert back[2].usage.cached_tokens == whole_steps(back)


def test_adapters_are_chosen_by_each_request_and_never_mix(bundled_model, tmp_path):
    one = write_adapter(tmp_path / "one.gguf", 0.3, seed=1)
    two = write_adapter(tmp_path / "two.gguf", 0.3, seed=2)
    prompt = CHAT.format("What is a token?")
    wishes = [(), (("one", 1.0),), (("two", 1.0),), (("one", 0.5), ("two", 0.5))]

    async def work(runner):
        options = {"max_tokens": 24, "ignore_eos": True}
        alone = [await collect(runner, prompt, lora=w, **options) for w in wishes]
        together = await asyncio.gather(*(collect(runner, prompt, lora=w, **options) for w in wishes))
        with pytest.raises(InputFault, match="three"):
            await collect(runner, prompt, lora=(("three", 1.0),))
        return alone, together

    alone, together = with_runner(bundled_model, work, lora=(one, two), kv_cells=4096)
    plain = with_runner(bundled_model, lambda r: collect(r, prompt, max_tokens=24, ignore_eos=True))
    assert alone[0][0] == plain[0]
    assert len({text for text, _, _ in alone}) == len(wishes)
    assert [t[0] for t in together] == [a[0] for a in alone]


def test_an_adapter_that_does_not_fit_is_refused(bundled_model, tmp_path):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF" + bytes(64))
    with pytest.raises(BadModelFile, match="adapter"):
        with_runner(bundled_model, lambda r: collect(r, "x"), lora=(str(bad),))


@pytest.mark.skipif(not hasattr(__import__("signal"), "SIGSTOP"), reason="needs SIGSTOP")
def test_a_runner_that_hangs_is_noticed_and_stopped(bundled_model, monkeypatch):
    import os
    import signal

    from engine.runner import watchdog

    async def main():
        runner = await RunnerProcess.start("llama", str(bundled_model))
        await runner.load(LoadSettings(path=str(bundled_model), n_ctx=1024, n_threads=1))
        # On a busy machine a sound runner may be silent for a while, so the strict limit starts here.
        monkeypatch.setattr(watchdog, "SILENCE_S", 6.0)
        runner._watchdog.on_heartbeat(0.0)  # the current wait still has the old limit
        await runner.stats()
        os.kill(runner.pid, signal.SIGSTOP)
        with pytest.raises(RunnerDied, match="stuck"):
            await asyncio.wait_for(collect(runner, "x"), 60)
        return runner.died

    assert asyncio.run(main()).exit_code == -9


def test_a_runner_that_never_says_hello_is_stopped(bundled_model, monkeypatch):
    from engine.runner import process, watchdog

    monkeypatch.setattr(watchdog, "START_S", 1.0)
    monkeypatch.setattr(
        process, "runner_command", lambda _engine: (sys.executable, "-c", "import time; time.sleep(600)")
    )

    async def main():
        with pytest.raises(RunnerDied, match="did not start within 1 s"):
            await asyncio.wait_for(RunnerProcess.start("llama", str(bundled_model)), 60)

    asyncio.run(main())


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of Linux and glibc")
@pytest.mark.parametrize(("wish", "asks"), [(None, True), ("glibc.malloc.hugetlb=0", False)])
def test_weights_and_cache_ask_for_huge_pages(bundled_model, monkeypatch, wish, asks):
    """Asserts huge-page advice on weights and cache, unless the user disables it."""
    if wish:
        monkeypatch.setenv("GLIBC_TUNABLES", wish)

    async def work(runner):
        return await asyncio.to_thread(Path(f"/proc/{runner.pid}/smaps").read_text)

    maps = with_runner(bundled_model, work, n_ctx=8192)
    asked = [m for m in maps.split("VmFlags:")[1:] if " hg" in m.splitlines()[0]]
    assert bool(asked) == asks


def test_who_stops_wanting_a_model_while_it_loads_is_told_so_and_not_of_a_dead_runner(bundled_model):
    def progress(phase, fraction):
        raise Paused

    async def run():
        runner = await RunnerProcess.start("llama", str(bundled_model))
        try:
            with pytest.raises(Paused):
                await runner.load(LoadSettings(path=str(bundled_model), n_ctx=1024, n_threads=1), progress)
        finally:
            await runner.stop()

    asyncio.run(run())


def test_a_runner_that_nobody_waits_for_any_more_ends_and_leaves_nothing_on_the_loop(monkeypatch):
    complaints = []
    gc.collect()  # ignore leftovers of other tests
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    before = {child.pid for child in psutil.Process().children()}

    async def run():
        starting = asyncio.create_task(RunnerProcess.start("llama", ""))
        begun = []
        while not begun:
            await asyncio.sleep(0.01)
            begun = [child for child in psutil.Process().children() if child.pid not in before]
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await RunnerProcess.end_all()
        return begun

    begun = asyncio.run(run())
    gc.collect()
    assert begun
    assert not [child for child in begun if runs(child.pid)]
    assert not complaints
