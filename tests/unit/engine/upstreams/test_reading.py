"""Responses of other servers, split anywhere, and hostile ones."""

import json

import pytest

from engine.chat.chat_pipeline import AnswerLogprobs
from engine.chat.openai_forward import forward
from engine.chat.query import ChatQuery
from engine.chat.types import (
    CallArguments,
    CallEnded,
    CallStarted,
    Message,
    NamedTool,
    ReasoningDelta,
    TextDelta,
    ToolDefinition,
)
from engine.core.errors import ContextOverflow, InputFault, ModelNotFound
from engine.core.types import Constraint
from engine.server.openai.schemas import ChatRequest
from engine.upstreams import errors
from engine.upstreams.error_mapping import refusal
from engine.upstreams.link import NoList, read_list
from engine.upstreams.registry import UpstreamRegistry, checked_url
from engine.upstreams.stream import ChatReader
from engine.upstreams.types import Rule
from tests.support.fakes.fake_upstream import MODEL, FakeUpstream


def recorded(kind, said, **body):
    """The bytes of such a server's response."""
    out = []

    def send(data):
        out.append(data if isinstance(data, bytes) else f"data: {json.dumps(data)}\r\n\r\n".encode())

    fake = FakeUpstream.__new__(FakeUpstream)
    fake.kind, fake.delay_s, fake.turns = kind, 0, None
    fake.talk(send, body, said)
    return b"".join([*out, b"data: [DONE]\n\n"])


def joined(events):
    """The same result however deltas are split."""
    out = []
    for event in events:
        if out and type(out[-1]) is type(event) and isinstance(event, TextDelta | ReasoningDelta):
            out[-1] = type(event)(out[-1].text + event.text)
        elif out and isinstance(event, CallArguments) and isinstance(out[-1], CallArguments):
            out[-1] = CallArguments(event.index, out[-1].delta + event.delta)
        else:
            out.append(event)
    return out


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
@pytest.mark.parametrize("said", ["think", "weather"])
def test_answers_cut_at_every_byte_are_the_same(kind, said):
    data = recorded(kind, said, tools=[1])
    whole = ChatReader("desk")
    expected = [*whole.feed(data), *whole.end()]
    for size in (1, 2, 3, 7, 50):
        reader = ChatReader("desk")
        found = [e for i in range(0, len(data), size) for e in reader.feed(data[i : i + size])]
        assert joined([*found, *reader.end()]) == joined(expected)
    if said == "weather":
        assert expected[-3:-1] + expected[-1:] == expected[-3:]
        assert joined(expected) == [
            CallStarted(0, "call_7", "weather"),
            CallArguments(0, '{"city": "Oslo"}'),
            CallEnded(0),
        ]


def test_text_before_an_error_is_not_lost():
    reader = ChatReader("desk")
    events = reader.feed(b'data: {"choices":[{"delta":{"content":"half"}}]}\ndata: {"error":{"message":"oom"}}\n')
    assert events == [TextDelta("half")]
    assert "oom" in str(reader.fault)


@pytest.mark.parametrize(
    "line",
    [b"[]", b"1", b"{", b'{"choices": 3}', b'{"choices":[{"delta":{"content":[1]}}]}', b"[" * 5000, b"\xff\xfe"],
)
def test_garbage_is_a_fault_not_a_crash(line):
    reader = ChatReader("desk")
    assert reader.feed(b"data: " + line + b"\n") == []
    assert reader.fault is not None


def test_an_answer_without_an_end_is_a_fault():
    reader = ChatReader("desk")
    reader.feed(b'data: {"choices":[{"delta":{"content":"half"}}]}\n')
    with pytest.raises(errors.UpstreamBrokeOff, match="after 1 chunks"):
        reader.end()
    reader.feed(b'data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"f"}}]}}]}\n')
    with pytest.raises(errors.UpstreamBrokeOff, match="after 2 chunks"):
        reader.end()


def test_indices_of_calls_are_counted_anew():
    reader = ChatReader("desk")
    call = {"index": 9_000_000, "function": {"name": "f", "arguments": "{}"}}
    chunk = {"choices": [{"delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]}
    started, arguments, ended = reader.feed(f"data: {json.dumps(chunk)}\n".encode())
    assert (started.index, arguments.index, ended.index) == (0, 0, 0)
    assert started.id.startswith("call_")


def test_log_probabilities():
    entry = {"token": "Hi", "logprob": -0.5, "bytes": [72, 105], "top_logprobs": [{"token": "Yo", "logprob": -2}]}
    chunk = {"choices": [{"delta": {"content": "Hi"}, "logprobs": {"content": [entry]}}]}
    first, text = ChatReader("desk").feed(f"data: {json.dumps(chunk)}\n".encode())
    assert isinstance(first, AnswerLogprobs)
    assert first.entries[0].top == ((-1, b"Yo", -2.0),)
    assert text == TextDelta("Hi")


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (401, b"no", errors.UpstreamRefusesKey),
        (403, b"", errors.UpstreamRefusesKey),
        (404, b'{"message":"The model `x` does not exist."}', ModelNotFound),
        (429, b"{}", errors.UpstreamBusy),
        (503, b"<html>", errors.UpstreamFault),
        (302, b"", errors.UpstreamFault),
        (400, b'{"error":{"message":"bad top_p","param":"top_p"}}', InputFault),
        (400, b'{"error":{"type":"exceed_context_size_error","n_prompt_tokens":9,"n_ctx":8}}', ContextOverflow),
    ],
)
def test_refusals(status, body, kind):
    error = refusal("desk", status, body, "x")
    assert type(error) is kind
    assert "desk" in str(error) or kind is ContextOverflow


@pytest.mark.parametrize("body", [b"", b"[]", b'{"data": 1}', b'{"data":[{"id":3}]}', b"<html>"])
def test_lists_that_are_none(body):
    with pytest.raises(NoList):
        read_list(body)


def test_lists_with_odd_rows():
    rows = [{"id": "a\x00b"}, {"id": ""}, {"id": "x" * 500}, {"id": "ok", "max_model_len": "many", "meta": {}}]
    kind, models = read_list(json.dumps({"data": rows}).encode())
    assert (kind, [m.name for m in models], models[0].n_ctx) == ("openai", ["ok"], 0)


def query(**more):
    return ChatQuery(
        messages=(Message(role="developer", content="be brief"), Message(role="user", content="x")), **more
    )


def test_what_each_kind_is_told():
    body = forward(query(thinking=False, sampling={"min_p": 0.1, "dry_multiplier": 1.0}), "vllm")
    assert body[0].body["messages"][0]["role"] == "system"
    assert body[0].body["chat_template_kwargs"]["enable_thinking"] is False
    assert body[0].body["min_p"] == 0.1
    assert body[1] == ("Not sent, for it is not understood there: dry_multiplier.",)
    request, notes = forward(query(thinking=False, max_tokens=5), "openai")
    assert request.body["messages"][0]["role"] == "developer"
    assert request.body["max_completion_tokens"] == 5
    assert "enable_thinking" in notes[0]
    assert forward(query(sampling={"dry_multiplier": 1.0}), "tessera")[0].body["dry_multiplier"] == 1.0


def test_another_tessera_reads_every_field_that_it_is_sent():
    sampling = {"temperature": 0.5, "top_n_sigma": 1.0, "logit_bias": {5: 1.0}, "order": ("typical_p", "top_k")}
    options = {"ignore_eos": True, "min_tokens": 2, "stop_token_ids": (5,), "context_shift": True}
    more = {"loop_guard": True, "deterministic": True, "logprobs": 2, "template": "chatml", "reasoning_budget": 9}
    asked = query(sampling=sampling, thinking=True, reasoning_effort="low", stop=("x",), **options, **more)
    body = forward(asked, "tessera")[0].body
    request = ChatRequest.model_validate_json(json.dumps({"model": MODEL, **body}))
    assert request.ignored() == []
    assert request.options()["reasoning_budget"] == 9


@pytest.mark.parametrize(
    ("kind", "form", "place"),
    [("vllm", "regex", "structured_outputs"), ("sglang", "regex", "regex"), ("llama-server", "gbnf", "grammar")],
)
def test_grammars(kind, form, place):
    assert place in forward(query(output=Constraint(kind=form, source="a")), kind)[0].body
    with pytest.raises(InputFault, match="takes no lark"):
        forward(query(output=Constraint(kind="lark", source="start: /a/")), kind)


def test_a_named_tool_and_what_cannot_be():
    tool = ToolDefinition(name="f")
    body = forward(query(tools=(tool,), tool_choice=NamedTool(name="f"), parallel_tool_calls=False), "vllm")[0].body
    assert body["tool_choice"]["function"] == {"name": "f"}
    assert body["parallel_tool_calls"] is False
    for more in ({"lora": (("a", 1.0),)}, {"template": "x"}, {"continue_final": True}):
        with pytest.raises(InputFault):
            forward(query(**more), "openai")


def test_rules_win_in_their_order_and_names_are_exact():
    registry = UpstreamRegistry()
    registry.add("a", "http://127.0.0.1:1")
    registry.add("b", "http://127.0.0.1:2/v1")
    registry.add_rule(Rule(model="qwen", upstream="b", as_model=MODEL))
    registry.add_rule(Rule(model="qwen*", upstream="a", as_model="other"))
    assert registry.way("qwen").model == MODEL
    assert registry.way("qwen-7b").upstream.name == "a"
    assert registry.way("local") is None
    with pytest.raises(errors.NoRule):
        registry.way("a/anything")
    registry.add_rule(Rule(model="local", upstream="a", as_model="big", queue=2))
    assert registry.way("local") is None
    assert registry.relief("local", queued=2) is None
    assert registry.relief("local", queued=3).model == "big"
    assert registry.relief("local", queued=None) is None  # it reports nothing that does not fit
    registry.remove("a")
    assert registry.relief("local", queued=9) is None
    assert [r.upstream for r in registry.saved.rules] == ["b"]


def test_addresses_lose_their_tail():
    assert checked_url(" https://h:1/api/v1/ ") == "https://h:1/api"
    assert checked_url("http://[::1]:8000") == "http://[::1]:8000"


def test_a_list_of_many_capabilities_is_cut():
    stated = ["long" * 9, *(f"odd-{number}" for number in range(40))]
    _, (model,) = read_list(json.dumps({"data": [{"id": "m", "capabilities": stated}]}).encode())
    assert set(model.capabilities) == {"completion", "chat", "tools", "long" * 8, *stated[1:16]}


@pytest.mark.parametrize(
    ("first", "expected"), [(0, 4096), (-1, 4096), (1, 1), ((1 << 31) - 1, (1 << 31) - 1), (1 << 31, 4096)]
)
def test_a_size_that_no_context_can_have_is_passed_over(first, expected):
    _, (model,) = read_list(
        json.dumps({"data": [{"id": "m", "max_model_len": first, "context_length": 4096}]}).encode()
    )
    assert model.n_ctx == expected
