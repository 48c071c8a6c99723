"""The number of prompt tokens in a step with running responses."""

from types import SimpleNamespace

import pytest

from devices.backends.cpu_kernels import ATTENTION
from engine.runner.generation.scheduler import next_in_line, to_preempt
from engine.runner.llama.batch.step_budget import (
    DEEP,
    LONG_TEXT,
    MIN_CHUNK,
    TILE_ROWS,
    StepBudget,
    prefill_order,
    usable_prefix,
)
from engine.runner.protocol import LoadSettings


def make_pace(n_ubatch=512, **settings):
    api = SimpleNamespace(llama_n_threads_batch=lambda _context: 2)
    loaded = SimpleNamespace(api=api, context=None, n_batch=2048, n_ubatch=n_ubatch)
    loaded.settings = LoadSettings(path="model.gguf", **settings)
    return StepBudget(loaded)


@pytest.fixture
def pace():
    return make_pace()


def test_alone_a_prompt_takes_the_whole_batch(pace):
    assert pace.prefill_budget(0) == 2048


def test_beside_answers_a_prompt_adds_a_tenth_of_a_second(pace):
    assert MIN_CHUNK <= pace.prefill_budget(1) < MIN_CHUNK + 4
    pace.note(rows=1000, outputs=0, seconds=1.0, cpu_s=2.0, now=1.0)  # 1,000 tok/s: 100 in a tenth of a second
    assert 100 <= pace.prefill_budget(1) < 104
    for _ in range(20):
        pace.note(rows=2000, outputs=0, seconds=0.01, cpu_s=0.02, now=2.0)
    assert pace.prefill_budget(1) == 511  # one more would need another pass over all weights


def test_what_answers_take_is_not_held_against_the_prompt(pace):
    """Otherwise wide steps would make prompts look slow, prompts would get less, and steps look slower still."""
    pace.note(rows=8, outputs=8, seconds=0.12, cpu_s=0.24, now=1.0)
    for i in range(30):
        pace.note(rows=28, outputs=8, seconds=0.12 + 20 * 0.004, cpu_s=0.4, now=2.0 + i)
    assert 30 <= pace.prefill_budget(8) < 34  # as much again as the eight take, at 4 ms per token


def test_before_answers_were_measured_they_count_as_three_rows_of_a_prompt(pace):
    pace.note(rows=104, outputs=4, seconds=0.112, cpu_s=0.2, now=1.0)
    assert 100 <= pace.prefill_budget(1) < 104  # 1 ms per row


@pytest.mark.parametrize("generating", range(1, 9))
def test_rows_fill_whole_tiles(pace, generating):
    assert (pace.prefill_budget(generating) + generating) % 4 == 0


def test_deep_in_a_text_a_step_with_a_prompt_fills_tiles(pace):
    assert pace.prefill_budget(3, depth=DEEP - 1) < TILE_ROWS / 2
    assert pace.prefill_budget(3, depth=DEEP) == TILE_ROWS - 3
    pace.note(rows=1000, outputs=0, seconds=1.0, cpu_s=2.0, now=1.0)
    assert pace.prefill_budget(3, depth=4000) == 2 * TILE_ROWS - 3
    assert pace.prefill_budget(0, depth=4000) == 2048


@pytest.mark.parametrize(
    "settings",
    [{"flash_attn": "off"}, {"type_k": "q8_0", "type_v": "q8_0"}, {"type_v": "f32"}, {"n_gpu_layers": -1}],
)
def test_no_tiles_where_attention_has_none(settings):
    assert make_pace(**settings).prefill_budget(3, depth=4000) < TILE_ROWS / 2


@pytest.mark.parametrize(
    ("cached", "length", "kept"),
    [
        (3000, 3048, 2984),  # 48 rows one by one take longer than 64 together
        (3000, 3064, 3000),
        (3000, 3020, 3000),
        (DEEP - 1, DEEP + 47, DEEP - 1),
        (0, 48, 0),
    ],
)
def test_a_rest_of_nearly_a_tile_is_read_as_one(cached, length, kept):
    assert usable_prefix(LoadSettings(path="model.gguf"), cached, length) == kept
    assert usable_prefix(LoadSettings(path="model.gguf", flash_attn="off"), cached, length) == cached


@pytest.mark.parametrize("n_ubatch", [4, 16, 32])
def test_a_prompt_goes_on_however_many_answer(n_ubatch):
    assert make_pace(n_ubatch).prefill_budget(40, depth=4000) == MIN_CHUNK


@pytest.mark.parametrize(("key_heads", "rows"), [(8, 11), (4, 7), (32, 19), (16, 19)])
def test_behind_a_long_text_a_step_has_fewer_rows(key_heads, rows):
    """One row takes 20 ms there: sixteen would delay a response by a third of a second."""
    pace = make_pace(tiles=(ATTENTION,))
    pace._loaded.model = None
    pace._loaded.api.llama_model_n_head = lambda _: 32
    pace._loaded.api.llama_model_n_head_kv = lambda _: key_heads
    pace.note(rows=1, outputs=1, seconds=0.01, cpu_s=0.02, now=1.0)
    pace.note(rows=100, outputs=0, seconds=2.0, cpu_s=4.0, now=1.0)
    assert pace.prefill_budget(1, depth=LONG_TEXT) == rows
    assert pace.prefill_budget(1, depth=LONG_TEXT - 1) >= MIN_CHUNK
    for now in range(30):  # such steps are measured, too
        more = pace.prefill_budget(1, depth=LONG_TEXT)
        pace.note(rows=1 + more, outputs=1, seconds=0.01 + more * 0.001, cpu_s=0.03, now=2.0 + now)
    assert 90 <= pace.prefill_budget(1, depth=LONG_TEXT) < 110


def test_many_that_wait_for_their_first_token_stretch_a_step(pace):
    pace.note(rows=1000, outputs=0, seconds=1.0, cpu_s=2.0, now=1.0)
    assert 300 <= pace.prefill_budget(1, waiting=3) < 304
    assert pace.prefill_budget(4, waiting=2) == pace.prefill_budget(4)
    assert pace.prefill_budget(1, waiting=50) == pace.prefill_budget(1, waiting=5)


def asked(n_missing, priority="interactive"):
    return SimpleNamespace(n_missing=n_missing, request=SimpleNamespace(priority=priority), skipped=False)


def test_the_shortest_rest_and_the_oldest_prompt_read_in_turns():
    oldest, short, batch = asked(900), asked(30), asked(5, "batch")
    came = [oldest, short, batch]
    for _ in range(2):
        assert prefill_order(came) == [short, oldest, batch]
        assert prefill_order(came) == came
    assert prefill_order([short, oldest]) == prefill_order([short, oldest]) == [short, oldest]
    assert prefill_order([]) == []


def test_groups_that_take_turns_do_not_take_each_others():
    """Adapters' groups alternate: a turn that changed with every step would always be the same for a group."""
    groups = [[asked(900), asked(30)], [asked(800), asked(20)]]
    firsts = [prefill_order(groups[step % 2])[0].n_missing for step in range(8)]
    assert firsts[0::2] == [30, 900, 30, 900]
    assert firsts[1::2] == [20, 800, 20, 800]


def requests(words):
    """Requests from words such as `a`, `a:side`: owner, and priority if it is not interactive."""
    parts = [word.partition(":") for word in words.split()]
    return [
        SimpleNamespace(
            name=f"{number}{owner}", request=SimpleNamespace(owner=owner, priority=how or "interactive")
        )
        for number, (owner, _, how) in enumerate(parts)
    ]


@pytest.mark.parametrize(
    ("waiting", "running", "chosen"),
    [
        ("a a b", "", "0a"),
        ("a a b", "a", "2b"),
        ("a b", "a a b", "1b"),
        ("a b", "a b", "0a"),
        ("a:side b:batch a", "b", "2a"),
        ("a:side b:batch c:background", "b", "2c"),
        ("a:side a:batch", "", "1a"),
    ],
)
def test_the_owner_with_the_fewest_running_requests_is_next(waiting, running, chosen):
    assert next_in_line(requests(waiting), requests(running)).name == chosen


@pytest.mark.parametrize(
    ("running", "waiting", "slots", "preempted"),
    [
        ("a a", "a", 2, []),
        ("a a", "b", 2, ["1a"]),
        ("a a", "b", 3, []),
        ("a a", "", 2, []),
        ("a b", "c", 2, []),  # each has one
        ("b a a b a", "b", 5, []),
        ("b a a b a", "c", 5, ["4a"]),
        ("a a", "b:batch", 2, []),
        ("a:side a", "b", 4, ["0a"]),
        ("a:side b:side", "c:side", 2, []),
    ],
)
def test_the_newest_request_of_the_owner_with_most_makes_room(running, waiting, slots, preempted):
    assert [s.name for s in to_preempt(requests(running), requests(waiting), slots)] == preempted
