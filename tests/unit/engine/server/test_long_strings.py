"""Bodies with long strings are parsed in parts, with the same result as in one piece."""

import asyncio
import codecs
import json
import random
from typing import Annotated

import pytest
from pydantic import BaseModel, Field, ValidationError
from starlette.requests import Request

from engine.core.errors import InputFault
from engine.server import body as long_strings
from engine.server.body import MAX_SHORT_BYTES, ShortenedJson
from engine.server.openai.schemas import ChatRequest

CHARACTERS = ["a", " ", "\\", '"', "\n", "\u0007", "ä", "€", "𝄞", "{", ",", "<", "0"]


def read(raw, kind=ChatRequest):
    cut = ShortenedJson(bytearray(raw))
    return cut.put_back(kind.model_validate_json(cut.short)), cut


def test_whatever_is_cut_out_is_put_back_as_it_was(monkeypatch):
    picks = random.Random(7)
    cuts = 0
    for _ in range(60):
        monkeypatch.setattr(long_strings, "_CHUNK_BYTES", picks.randrange(20, 60))

        def text():
            letters = picks.choices(CHARACTERS, k=picks.randrange(400))
            return "".join(letters)

        body = {
            "model": text(),
            "messages": [
                {"role": "user", "content": text()},
                {"role": "user", "content": [{"type": "text", "text": text()}, {"nobody": {"knows": [text(), 1]}}]},
                {"role": "assistant", "tool_calls": [{"function": {"name": text(), "arguments": text()}}]},
            ],
            "stop": [text(), text()],
            "unknown": [text(), {"deep": text()}],
            "metadata": {"a": text()},
        }
        raw = json.dumps(body, ensure_ascii=picks.random() < 0.5).encode()
        got, cut = read(raw)
        cuts += cut.any
        assert got.model_dump() == ChatRequest.model_validate_json(raw).model_dump()
    assert cuts > 40  # otherwise nothing was shown


def test_a_long_text_leaves_a_short_json():
    raw = json.dumps({"model": "m", "messages": [{"role": "user", "content": "a" * 3_000_000}]}).encode()
    got, cut = read(raw)
    assert len(cut.short) < 40_000
    assert got.messages[0].content == "a" * 3_000_000


def test_a_long_text_is_held_to_the_length_its_field_may_have():
    raw = json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": "a"}], "chat_template": "b" * (2 << 20)}
    )
    with pytest.raises(ValidationError, match="chat_template"):
        read(raw.encode())


class _Words(BaseModel):
    words: list[Annotated[str, Field(max_length=1 << 20)]]


def test_long_texts_in_a_list_are_held_to_the_length_they_may_have():
    with pytest.raises(ValidationError, match=r"words\.0"):
        read(json.dumps({"words": ["b" * (2 << 20)]}).encode(), _Words)


@pytest.mark.parametrize("wrong", [b"\n", b"\\x", b"\\ud800", b"\xff"])
def test_what_is_no_string_is_refused_though_it_is_long(wrong):
    with pytest.raises(InputFault, match="not valid JSON"):
        ShortenedJson(b'{"model": "%b%b%b"}' % (b"a" * 100_000, wrong, b"a" * 100_000))


def parsed(raw):
    """The body of a request as routes parse it."""

    async def receive():
        return {"type": "http.request", "body": raw, "more_body": False}

    request = Request({"type": "http", "method": "POST", "path": "/", "headers": []}, receive)
    return asyncio.run(long_strings.parse(request, ChatRequest))


SMALL = json.dumps({"model": "m", "messages": [{"role": "user", "content": "é"}]}, ensure_ascii=False)


@pytest.mark.parametrize("size", [0, 2 << 20])
def test_a_byte_order_mark_is_left_out(size):
    """Windows programs write one at the beginning of files, which `curl --data @file` sends."""
    raw = codecs.BOM_UTF8 + SMALL.encode() + b" " * size
    assert parsed(raw).messages[0].content == "é"


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (SMALL.encode("utf-16"), "UTF-16"),
        (SMALL.encode("latin-1"), "not UTF-8 text at line 1"),  # Windows PowerShell 5
        (SMALL.replace("é", "\\ud83d").encode(), "half of a character"),  # JavaScript cut it there
        (SMALL.replace("é", "\\ud83d\\n").encode(), "half of a character"),
        (SMALL.replace("é", "\\ude00").encode(), "half of a character"),
    ],
)
def test_what_is_wrong_with_the_characters_is_said(raw, says):
    with pytest.raises(InputFault, match=says):
        parsed(raw)


def test_a_long_name_is_refused():
    with pytest.raises(InputFault, match="name"):
        read(json.dumps({"model": "m", "messages": [{"role": "user", "content": "a"}], "k" * 200_000: 1}).encode())


def test_many_strings_of_middle_length_are_refused_before_they_are_parsed():
    raw = json.dumps({"model": "m", "unknown": ["a" * 10_000] * (MAX_SHORT_BYTES // 10_000 + 1)}).encode()
    with pytest.raises(InputFault, match="outside its long strings"):
        ShortenedJson(raw)
