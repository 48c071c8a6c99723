"""The official client with a real server and the real bundled model."""

import asyncio

import pytest

from tests.support.late import openai

pytestmark = pytest.mark.e2e

# Logit gap below which the batch shape may decide; see docs/dev/runner.md.
TOLERANCE = 0.05


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as made:
        yield made


def ask(text):
    return [{"role": "user", "content": text}]


def test_lists_the_bundled_model(client):
    models = {m.id: m for m in client.models.list()}
    assert "spark" in models
    assert client.models.retrieve("spark").model_extra["context_length"] == 1024


def test_answers_about_tessera(client):
    answer = client.chat.completions.create(model="spark", messages=ask("What is a tessera?"), temperature=0)
    assert len(answer.choices[0].message.content) > 20
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_stream_and_whole_answer_agree(client):
    whole = client.chat.completions.create(
        model="spark", messages=ask("How do I use tar?"), temperature=0, max_tokens=40
    )
    stream = client.chat.completions.create(
        model="spark",
        messages=ask("How do I use tar?"),
        temperature=0,
        max_tokens=40,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


def test_eight_at_once_equal_one_alone(server):
    prompts = [
        "How do I use tar?",
        "What is a token?",
        "Write a Python loop.",
        "Hello",
        "What is quantization?",
        "How do I list files?",
        "Tell me about memory.",
        "What can you do?",
    ]

    async def one(client, prompt):
        return await client.chat.completions.create(
            model="spark", messages=ask(prompt), temperature=0, max_tokens=48, logprobs=True, top_logprobs=2
        )

    async def run():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
            together = await asyncio.gather(*(one(client, p) for p in prompts))
            alone = [await one(client, p) for p in prompts]
        return together, alone

    together, alone = asyncio.run(run())
    for prompt, a, b in zip(prompts, together, alone, strict=True):
        assert a.usage.prompt_tokens == b.usage.prompt_tokens
        assert_same_up_to_ties(prompt, a.choices[0].logprobs.content, b.choices[0].logprobs.content)


def assert_same_up_to_ties(prompt, a, b):
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x.token != y.token:
            gap = abs(x.top_logprobs[0].logprob - x.top_logprobs[1].logprob)
            assert gap < TOLERANCE, f"{prompt!r}: token {i} is {x.token!r} or {y.token!r}, gap {gap:.3f}"
            return
        assert abs(x.logprob - y.logprob) < 0.1
    assert len(a) == len(b)


def test_a_seed_repeats_the_answer_and_choices_differ(client):
    def run(n):
        answer = client.chat.completions.create(
            model="spark", messages=ask("Tell me a story."), n=n, seed=7, temperature=1, max_tokens=24
        )
        return [c.message.content for c in answer.choices], answer.usage

    run(1)  # from here on the prompt is cached, so both runs get the same logits
    assert run(1)[0] == run(1)[0]
    texts, usage = run(3)
    assert len(set(texts)) > 1
    assert usage.completion_tokens <= 72


def test_stop_string_over_token_borders_is_not_shown(client):
    whole = client.chat.completions.create(
        model="spark", messages=ask("How do I use tar?"), temperature=0, max_tokens=60
    )
    text = whole.choices[0].message.content
    stop = text[12:19]
    cut = client.chat.completions.create(
        model="spark", messages=ask("How do I use tar?"), temperature=0, max_tokens=60, stop=[stop]
    )
    assert cut.choices[0].message.content == text[: text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"


def test_logprobs_are_probabilities(client):
    answer = client.chat.completions.create(
        model="spark", messages=ask("Hello"), temperature=0, max_tokens=5, logprobs=True, top_logprobs=3
    )
    for entry in answer.choices[0].logprobs.content:
        assert entry.logprob <= 0
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].logprob >= entry.top_logprobs[1].logprob
        assert bytes(entry.bytes).decode("utf-8", "replace") == entry.token
        assert abs(entry.logprob - entry.top_logprobs[0].logprob) < 1e-4


def test_logit_bias_moves_the_choice(client):
    forced = client.chat.completions.create(
        model="spark", messages=ask("Hi"), temperature=0, max_tokens=3, logit_bias={"300": 100}
    )
    again = client.chat.completions.create(
        model="spark", messages=ask("Hi"), temperature=0, max_tokens=3, logit_bias={"300": -100}
    )
    assert forced.choices[0].message.content != again.choices[0].message.content


def test_length_is_reported(client):
    answer = client.chat.completions.create(model="spark", messages=ask("Tell me a story."), max_tokens=3)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 3


def test_completions_take_text_lists_and_tokens(client):
    one = client.completions.create(model="spark", prompt="def add(a, b):", temperature=0, max_tokens=8)
    many = client.completions.create(
        model="spark", prompt=["def add(a, b):", "import os"], temperature=0, max_tokens=8, echo=True
    )
    assert many.choices[0].text == "def add(a, b):" + one.choices[0].text
    assert [c.index for c in many.choices] == [0, 1]
    ids = client.completions.create(model="spark", prompt=[3542, 2876], temperature=0, max_tokens=4)
    assert ids.usage.prompt_tokens == 2
    streamed = client.completions.create(
        model="spark", prompt="def add(a, b):", temperature=0, max_tokens=8, stream=True
    )
    assert "".join(c.choices[0].text for c in streamed) == one.choices[0].text


def test_a_shared_prefix_is_taken_from_the_cache(client):
    system = {"role": "system", "content": "You are a careful assistant. " * 12}
    client.chat.completions.create(model="spark", messages=[system, *ask("One?")], max_tokens=2)
    second = client.chat.completions.create(model="spark", messages=[system, *ask("Two?")], max_tokens=2)
    cached = second.usage.prompt_tokens_details.cached_tokens
    assert cached > 0.7 * second.usage.prompt_tokens


def test_prompt_longer_than_the_context(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="spark", messages=ask("word " * 3000))
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.body["prompt_tokens"] > 3000
    assert caught.value.body["context_tokens"] == 1024


def test_unknown_model(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-nope", messages=ask("Hi"))
    assert caught.value.code == "model_not_found"
    assert "spark" in str(caught.value)


def test_responses_with_log_probabilities(client):
    ask = {"model": "spark", "input": "What is a tessera?", "max_output_tokens": 12, "temperature": 0}
    wanted = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    part = client.responses.create(**ask, **wanted).output[0].content[0]
    assert "".join(entry.token for entry in part.logprobs).strip() == part.text.strip()
    assert all(entry.logprob <= 0 and len(entry.top_logprobs) == 2 for entry in part.logprobs)
    streamed = []
    for event in client.responses.create(**ask, **wanted, stream=True):
        if event.type == "response.output_text.delta":
            streamed += event.logprobs
        elif event.type == "response.output_text.done":
            assert [entry.token for entry in event.logprobs] == [entry.token for entry in part.logprobs]
    assert [entry.token for entry in streamed] == [entry.token for entry in part.logprobs][: len(streamed)]
    assert client.responses.create(**ask).output[0].content[0].logprobs == []
