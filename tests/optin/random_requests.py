"""Random requests for a marathon, with what a correct response looks like."""

import json
import random
from dataclasses import dataclass, field
from typing import Any

WORDS = [
    "the", "file", "name", "a", "list", "of", "tokens", "and", "why", "model", "answers", "explain", "code", "in",
    "python", "def", "return", "import", "os", "class", "value", "for", "index", "range", "print", "error",
    "memory", "cache", "window", "server", "story", "once", "upon", "time",
]  # fmt: skip
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "count": {"type": "integer"}},
    "required": ["name", "count"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Reads a file.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    },
}
# The token that is not a number in the poisoned model (see tests/support/models/variants.py).
POISON = 7777


@dataclass
class Shot:
    """One request. `expect` is `ok`, `refused` (4xx), `poison` (an error that says so) or `any` (it leaves).

    `leave_after`: bytes of the answer after which the client hangs up; -1 before the first, None: stays. `golden`
    is the index of the prompt whose text is known. `slow` clients read with pauses.
    """

    kind: str
    path: str
    body: Any
    expect: str = "ok"
    stream: bool = False
    leave_after: int | None = None
    golden: int | None = None
    slow: bool = False
    wants: tuple[str, ...] = field(default_factory=tuple)


def prose(rng: random.Random, low: int, high: int) -> str:
    """Some words."""
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(low, high)))


def golden_prompts(count: int) -> list[str]:
    """Prompts whose answers are computed alone before anything else runs; half of them share a long beginning."""
    rng = random.Random(7)
    shared = prose(rng, 150, 150)
    return [
        f"<|im_start|>user\n{shared if i % 2 else ''}{prose(rng, 5, 60)}<|im_end|>\n<|im_start|>assistant\n"
        for i in range(count)
    ]


def _sampling(rng: random.Random) -> dict[str, Any]:
    found: dict[str, Any] = {"temperature": rng.choice([0, 0.3, 0.8, 1.0, 1.5])}
    menu = {
        "top_p": rng.uniform(0.1, 1), "top_k": rng.randint(0, 100), "min_p": rng.uniform(0, 0.3),
        "typical_p": rng.uniform(0.2, 1), "repeat_penalty": rng.uniform(0.8, 1.5), "seed": rng.getrandbits(31),
        "presence_penalty": rng.uniform(-2, 2), "frequency_penalty": rng.uniform(-2, 2),
        "mirostat": rng.choice([1, 2]), "xtc_probability": rng.uniform(0, 1), "dry_multiplier": rng.uniform(0, 2),
        "top_n_sigma": rng.uniform(0.5, 3), "dynatemp_range": rng.uniform(0, 1),
        "logit_bias": {str(rng.randrange(8000)): rng.uniform(-100, 20)},
        "speculate": rng.choice([True, False]),
    }  # fmt: skip
    for name in rng.sample(sorted(menu), rng.randint(0, 4)):
        found[name] = menu[name]
    return found


def _length(rng: random.Random) -> int:
    return min(int(rng.expovariate(1 / 30)) + 1, 300)


def _messages(rng: random.Random) -> list[dict[str, str]]:
    turns = [{"role": "system", "content": prose(rng, 3, 30)}] if rng.random() < 0.4 else []
    for _ in range(rng.choice([0, 0, 0, 1, 3])):
        turns += [
            {"role": "user", "content": prose(rng, 2, 30)},
            {"role": "assistant", "content": prose(rng, 2, 30)},
        ]
    return [*turns, {"role": "user", "content": prose(rng, 1, rng.choice([10, 60, 250]))}]


def _chat(rng: random.Random, model: str) -> Shot:
    stream = rng.random() < 0.75
    body = {
        "model": model,
        "messages": _messages(rng),
        "max_tokens": _length(rng),
        "stream": stream,
        **_sampling(rng),
    }
    if rng.random() < 0.2:
        body |= {"stop": rng.sample(["\n", "the", "e", ". "], rng.randint(1, 3))}
    if rng.random() < 0.15:
        body |= {"logprobs": True, "top_logprobs": rng.randint(0, 5)}
    if rng.random() < 0.1:
        body |= {"n": rng.randint(2, 4)}
    return Shot("chat", "/v1/chat/completions", body, stream=stream, slow=rng.random() < 0.03)


def _completion(rng: random.Random, model: str) -> Shot:
    stream = rng.random() < 0.5
    prompt: Any = prose(rng, 1, 200)
    if rng.random() < 0.4:
        prompt = [rng.randrange(300, 7700) for _ in range(rng.choice([1, 8, 63, 64, 65, 300, 600]))]
    body = {"model": model, "prompt": prompt, "max_tokens": _length(rng), "stream": stream, **_sampling(rng)}
    return Shot("completion", "/v1/completions", body, stream=stream)


def _embedding(rng: random.Random, model: str) -> Shot:
    texts = [prose(rng, 1, rng.choice([5, 50, 300])) for _ in range(rng.choice([1, 1, 4, 20]))]
    return Shot("embedding", "/v1/embeddings", {"model": model, "input": texts})


def _structured(rng: random.Random, model: str) -> Shot:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
    body = {"model": model, "messages": _messages(rng), "max_tokens": 120, "response_format": schema}
    return Shot("structured", "/v1/chat/completions", {**body, "temperature": rng.choice([0, 1])})


def _tools(rng: random.Random, model: str) -> Shot:
    choice = rng.choice(["auto", "required", "none"])
    body = {"model": model, "messages": _messages(rng), "max_tokens": 100, "tools": [TOOL], "tool_choice": choice}
    return Shot("tools", "/v1/chat/completions", body)


def _other_protocol(rng: random.Random, model: str) -> Shot:
    stream, text, n = rng.random() < 0.5, prose(rng, 1, 60), _length(rng)
    talk = [{"role": "user", "content": text}]
    match rng.randrange(4):
        case 0:
            body: dict[str, Any] = {"model": model, "messages": talk, "max_tokens": n, "stream": stream}
            return Shot("anthropic", "/v1/messages", body, stream=stream)
        case 1:
            body = {"model": model, "input": text, "max_output_tokens": max(n, 16), "stream": stream}
            return Shot("responses", "/v1/responses", body, stream=stream)
        case 2:
            body = {"model": model, "messages": talk, "options": {"num_predict": n}, "stream": stream}
            return Shot("ollama", "/api/chat", body, stream=stream)
        case _:
            return Shot("tokenize", "/tokenize", {"model": model, "content": text})


def _bad(rng: random.Random, model: str) -> Shot:
    talk = [{"role": "user", "content": "Hi"}]
    chat = "/v1/chat/completions"
    bodies: list[tuple[str, Any]] = [
        (chat, b'{"model": "spark", "messages": ['),
        (chat, b"\xff\xfe\x00"),
        (chat, b"[" * 5000),
        (chat, {"model": model}),
        (chat, {"model": "no-such-model", "messages": talk}),
        (chat, {"model": model, "messages": []}),
        (chat, {"model": model, "messages": talk, "temperature": "hot"}),
        (chat, {"model": model, "messages": talk, "max_tokens": -2}),
        (chat, {"model": model, "messages": talk, "n": 10_000}),
        (chat, {"model": model, "messages": talk, "logit_bias": {"999999": 1}}),
        (chat, {"model": model, "messages": [{"role": "king", "content": "x"}]}),
        (chat, {"model": model, "messages": [{"role": "user", "content": prose(rng, 3000, 4000)}]}),
        (chat, {"model": model, "messages": talk, "response_format": {"type": "json_schema", "json_schema": {}}}),
        (chat, {"model": model, "messages": talk, "grammar": "root ::= ("}),
        (chat, {"model": model, "messages": talk, "chat_template": "{% for x in range(10**9) %}{% endfor %}"}),
        ("/v1/completions", {"model": model, "prompt": [10**9]}),
        ("/v1/completions", {"model": model, "prompt": [-5]}),
        ("/v1/embeddings", {"model": model, "input": []}),
        ("/v1/embeddings", {"model": model, "input": [[10**7]]}),
        ("/v1/messages", {"model": model, "messages": talk}),
        ("/api/chat", {"model": "no-such-model", "messages": talk}),
        ("/no/such/route", {}),
    ]
    path, body = rng.choice(bodies)
    return Shot("bad", path, body, expect="refused")


def _poison(rng: random.Random, poisoned: str) -> Shot:
    prompt = [rng.randrange(300, 7700) for _ in range(rng.choice([3, 40, 200]))]
    prompt.insert(rng.randrange(len(prompt)), POISON)
    body = {"model": poisoned, "prompt": prompt, "max_tokens": 20, "temperature": rng.choice([0, 1])}
    return Shot("poison", "/v1/completions", body, expect="poison")


def draw_shot(rng: random.Random, model: str, poisoned: str, golden: list[str]) -> Shot:
    """The next request. `poisoned` is the same model with one token whose embedding is not a number."""
    name = poisoned if rng.random() < 0.25 else model
    kinds = [_chat, _completion, _embedding, _structured, _tools, _other_protocol, _bad]
    pick = rng.random()
    if pick < 0.08:
        index = rng.randrange(len(golden))
        body = {"model": name, "prompt": golden[index], "max_tokens": 60, "temperature": 0, "stream": True}
        body["speculate"] = rng.choice([None, True, False])
        return Shot("golden", "/v1/completions", body, stream=True, golden=index)
    if pick < 0.10:
        return _poison(rng, poisoned)
    (make,) = rng.choices(kinds, weights=[34, 18, 8, 8, 6, 12, 10])
    shot = make(rng, name)
    if shot.expect == "ok" and rng.random() < 0.15:
        shot.expect = "any"
        shot.leave_after = rng.choice([-1, 0, 1, 300, 3000])
    return shot


def refusal(body: bytes) -> str | None:
    """The message of an error answer in any of the protocols; None when it has no known shape."""
    try:
        told = json.loads(body)
        error = (told.get("response") or told)["error"]
        return str(error if isinstance(error, str) else error["message"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def complete(shot: Shot, body: bytes) -> str | None:
    """What is wrong with a successful answer; None when it is whole."""
    if shot.stream:
        if shot.path == "/api/chat":
            last = json.loads(body.splitlines()[-1])
            return None if last.get("done") else "the stream has no end"
        ends = (b"data: [DONE]", b"message_stop", b"response.completed", b"response.incomplete")
        return None if any(end in body[-20_000:] for end in ends) else "the stream has no end"
    told = json.loads(body)
    if shot.kind == "embedding":
        wanted, rows = len(shot.body["input"]), told["data"]
        return None if len(rows) == wanted else f"{len(rows)} of {wanted} embeddings"
    if shot.kind == "structured" and told["choices"][0]["finish_reason"] == "stop":
        value = json.loads(told["choices"][0]["message"]["content"])
        return None if set(value) == {"name", "count"} else "not what the schema says"
    return None
