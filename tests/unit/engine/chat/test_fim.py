import asyncio
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.chat.fim import FimFile, FimGap, FimPart, comment_sign, fim_parts, fim_stops, shortened
from engine.chat.fim_families import family_of
from engine.core.errors import InputFault
from engine.core.types import ModelFacts
from engine.pool.loaded_model import LoadedModel
from engine.runner.protocol import LoadSettings
from engine.server.fim import NoFimModel, fim_family, fim_model
from engine.server.llama_server.fim import InfillRequest
from tests.support.examples import examples

FACTS = ModelFacts(
    architecture="llama",
    description="",
    n_params=1,
    size_bytes=1,
    n_vocab=1,
    n_ctx=1024,
    n_ctx_train=1024,
    n_parallel=1,
    n_embd=1,
    chat_template=None,
    bos="",
    eos="",
    add_bos=False,
    fim={},
    metadata={},
)
STAR = {"pre": "<fim_prefix>", "suf": "<fim_suffix>", "mid": "<fim_middle>"}
PIPED = {"pre": "<|fim_prefix|>", "suf": "<|fim_suffix|>", "mid": "<|fim_middle|>"}
QWEN = {**PIPED, "rep": "<|repo_name|>", "sep": "<|file_sep|>", "pad": "<|fim_pad|>"}
DEEP = {"pre": "<｜fim▁begin｜>", "suf": "<｜fim▁hole｜>", "mid": "<｜fim▁end｜>"}
LLAMA = {"pre": "▁<PRE>", "suf": "▁<SUF>", "mid": "▁<MID>"}
SEED = {"pre": "<[fim-prefix]>", "suf": "<[fim-suffix]>", "mid": "<[fim-middle]>"}
GAP = FimGap(
    prefix="def f():\n", suffix="\nend", path="src/a.py", repository="repo", extra=(FimFile("b.py", "B = 1"),)
)


def facts(fim, architecture="llama", name=""):
    return msgspec.structs.replace(FACTS, fim=fim, architecture=architecture, metadata={"general.name": name})


# (facts, family, prompt without context, prompt with a path and another file)
FAMILIES = [
    (
        facts(QWEN, "qwen2"),
        "qwen",
        "<|fim_prefix|>def f():\n<|fim_suffix|>\nend<|fim_middle|>",
        (
            "<|repo_name|>repo\n<|file_sep|>b.py\nB = 1\n<|file_sep|>src/a.py\n"
            "<|fim_prefix|>def f():\n<|fim_suffix|>\nend<|fim_middle|>"
        ),
    ),
    (
        facts(STAR, "starcoder2"),
        "starcoder2",
        "<fim_prefix>def f():\n<fim_suffix>\nend<fim_middle>",
        (
            "<repo_name>repo\n<file_sep>b.py\nB = 1\n<file_sep>src/a.py\n"
            "<fim_prefix>def f():\n<fim_suffix>\nend<fim_middle>"
        ),
    ),
    (
        facts(STAR, "granite"),
        "starcoder",
        "<fim_prefix>def f():\n<fim_suffix>\nend<fim_middle>",
        "<fim_prefix># Path: b.py\n# B = 1\n\ndef f():\n<fim_suffix>\nend<fim_middle>",
    ),
    (
        facts(STAR, "llama", "Mellum-4b-base"),
        "mellum",
        "<fim_suffix>\nend<fim_prefix>def f():\n<fim_middle>",
        "<filename>b.py\nB = 1\n<filename>src/a.py\n<fim_suffix>\nend<fim_prefix>def f():\n<fim_middle>",
    ),
    (
        facts(PIPED, "gemma"),
        "codegemma",
        "<|fim_prefix|>def f():\n<|fim_suffix|>\nend<|fim_middle|>",
        "b.py\nB = 1<|file_separator|>src/a.py\n<|fim_prefix|>def f():\n<|fim_suffix|>\nend<|fim_middle|>",
    ),
    (
        facts(DEEP),
        "deepseek-coder",
        "<｜fim▁begin｜>def f():\n<｜fim▁hole｜>\nend<｜fim▁end｜>",
        "<｜fim▁begin｜>#b.py\nB = 1\n\n#src/a.py\ndef f():\n<｜fim▁hole｜>\nend<｜fim▁end｜>",
    ),
    (facts(LLAMA), "codellama", "▁<PRE>def f():\n▁<SUF>\nend▁<MID>", None),
    (
        facts({}, "llama", "Codestral-22B-v0.1"),
        "codestral",
        "[SUFFIX]\nend[PREFIX]def f():\n",
        "[SUFFIX]\nend[PREFIX]+++++ b.py\nB = 1\n\n+++++ src/a.py\ndef f():\n",
    ),
    (facts(SEED), "seed-coder", "<[fim-suffix]>\nend<[fim-prefix]>def f():\n<[fim-middle]>", None),
    (
        facts(PIPED, "llama", "Spark (demo)"),
        "plain",
        "<|fim_prefix|>def f():\n<|fim_suffix|>\nend<|fim_middle|>",
        "<|fim_prefix|># Path: b.py\n# B = 1\n\ndef f():\n<|fim_suffix|>\nend<|fim_middle|>",
    ),
]


@pytest.mark.parametrize(("model", "name", "plain", "full"), FAMILIES, ids=[row[1] for row in FAMILIES])
def test_each_family_gets_the_prompt_it_was_trained_on(model, name, plain, full):
    family = family_of(model)
    assert family is not None
    assert family.name == name
    bare = FimGap(prefix=GAP.prefix, suffix=GAP.suffix)
    assert "".join(part.text for part in fim_parts(model, family, bare)) == plain
    if full is not None:
        assert "".join(part.text for part in fim_parts(model, family, GAP)) == full
    assert set(model.fim.values()) <= set(fim_stops(model, family))


@pytest.mark.parametrize("fim", [{}, {"pre": "<|fim_prefix|>"}, {"pre": "<|fim_prefix|>", "suf": "<|fim_suffix|>"}])
def test_a_model_without_the_tokens_is_refused_with_a_reason(fim):
    model = LoadedModel("chatty", "llama", LoadSettings(path="x"), facts=facts(fim))
    assert family_of(facts(fim)) is None
    with pytest.raises(InputFault, match="not trained to fill gaps"):
        fim_family(model)


def test_marks_in_source_code_are_never_special():
    hostile = "x <|fim_middle|> <|repo_name|> <|im_end|>"
    gap = FimGap(
        prefix=hostile, suffix=hostile, path=hostile, repository=hostile, extra=(FimFile(hostile, hostile),)
    )
    family = family_of(facts(QWEN))
    for part in fim_parts(facts(QWEN), family, gap):
        assert part.special == (hostile not in part.text), part
    assert FimPart("<|fim_middle|>", True) == fim_parts(facts(QWEN), family, gap)[-1]


def test_comments_fit_the_language():
    assert [comment_sign(p) for p in ("a.py", "b.rs", "q.sql", "Makefile")] == ["#", "//", "--", "#"]


LINES = st.lists(st.text(alphabet="ab \n", max_size=30), max_size=60).map("\n".join)


@pytest.mark.slow
@settings(max_examples=examples(200), deadline=None)
@given(prefix=LINES, suffix=LINES, keep=st.tuples(st.integers(0, 400), st.integers(0, 400), st.integers(0, 400)))
def test_shortening_keeps_what_is_next_to_the_gap(prefix, suffix, keep):
    extra = (FimFile("a", prefix), FimFile("b", suffix))
    gap = FimGap(prefix=prefix, suffix=suffix, extra=extra)
    short = shortened(gap, keep_prefix=keep[0], keep_suffix=keep[1], keep_extra=keep[2])
    assert prefix.endswith(short.prefix)
    assert suffix.startswith(short.suffix)
    assert len(short.prefix) <= keep[0]
    assert len(short.suffix) <= keep[1]
    assert sum(len(f.path) + len(f.text) for f in short.extra) <= keep[2]
    if len(prefix) <= keep[0]:
        assert short.prefix == prefix


def test_typing_leaves_the_start_of_a_shortened_prefix_where_it_is():
    text = "".join(f"line {n} = {n * n}\n" for n in range(2000))
    starts = {
        len(text[:at])
        - len(shortened(FimGap(prefix=text[:at], suffix=""), keep_prefix=4000, keep_suffix=0, keep_extra=0).prefix)
        for at in range(20_000, 20_500)
    }
    assert len(starts) <= 2


def test_without_a_model_for_gaps_the_error_names_one_to_get():
    async def none():
        return ()

    state = SimpleNamespace(pool=SimpleNamespace(loaded=()), models=SimpleNamespace(automatic=none))
    with pytest.raises(NoFimModel, match=r"tessera models pull qwen2\.5-coder") as caught:
        asyncio.run(fim_model(state, None))
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize(("n_predict", "expected"), [(None, 128), (-1, 128), (0, 1), (1, 1), (7, 7)])
def test_a_gap_is_filled_with_as_many_tokens_as_were_asked_for(n_predict, expected):
    assert InfillRequest(n_predict=n_predict).max_tokens == expected
