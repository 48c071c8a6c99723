"""What the chat layer costs: rendering, parsing a stream, and constraining one over a large vocabulary.

Run: python tests/bench/chat_cost.py. Prints medians; record them in log-archive.md.
"""

import asyncio
import json
import random
import statistics
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from engine.chat.template import TemplateRenderer
from engine.chat.tools.dialects import BY_NAME, choose
from engine.chat.tools.parser import AnswerParser
from engine.chat.types import ChatTemplate, Message, ToolDefinition
from engine.core.types import Constraint
from engine.runner.generation.grammar_mask import ConstraintCompiler

TEMPLATES = ROOT / "tests" / "data" / "templates"
TOOLS = (
    ToolDefinition(
        name="write_file",
        parameters={"type": "object", "properties": {"path": {"type": "string"}, "text": {"type": "string"}}},
    ),
)
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "age", "tags"],
}


def timed(function, repeats=30):
    spent = []
    for _ in range(repeats):
        began = time.perf_counter()
        function()
        spent.append(time.perf_counter() - began)
    return statistics.median(spent)


async def rendering():
    renderer = TemplateRenderer()
    long = [Message(role="user" if i % 2 == 0 else "assistant", content="word " * 200) for i in range(101)]
    for name in ("Qwen3-Coder", "openai-gpt-oss-120b", "mistralai-Mistral-Nemo-Instruct-2407"):
        template = ChatTemplate(source=(TEMPLATES / f"{name}.jinja").read_text("utf-8"))
        began = time.perf_counter()
        await renderer.render(template, long[:1], TOOLS)
        first = time.perf_counter() - began
        for label, messages in (("1 message", long[:1]), ("101 messages, 100 KB", long)):
            spent = []
            for _ in range(30):
                began = time.perf_counter()
                await renderer.render(template, messages, TOOLS)
                spent.append(time.perf_counter() - began)
            print(
                f"render {name}: {label}: {statistics.median(spent) * 1e3:.2f} ms (first use {first * 1e3:.0f} ms)"
            )
    renderer.close()


def parsing():
    rng = random.Random(0)
    words = ["the ", "a", " model", ".\n", " x < y", "é", " (", "`code`"]
    prose = [rng.choice(words) for _ in range(4000)]
    body = json.dumps("".join(prose), ensure_ascii=False)[1:-1]
    pieces = [body[i : i + 4] for i in range(0, len(body), 4)]
    streams = {
        "text": ("hermes", prose),
        "reasoning": ("qwen-coder", ["<think>", *prose]),
        "JSON arguments": ("hermes", ['<tool_call>{"name": "write_file", "arguments": {"text": "', *pieces]),
        "tagged arguments": ("qwen-coder", ["<function=write_file><parameter=text>", *pieces]),
    }
    for label, (dialect, stream) in streams.items():

        def run(dialect=dialect, stream=stream):
            parser = AnswerParser(BY_NAME[dialect], TOOLS)
            for piece in stream:
                parser.feed(piece)

        print(f"parse {label}: {timed(run, 5) / len(stream) * 1e6:.1f} us a piece")
    sources = [path.read_text("utf-8") for path in TEMPLATES.glob("*.jinja")]
    print(f"choose a dialect: {timed(lambda: [choose(s) for s in sources], 5) / len(sources) * 1e6:.0f} us")


class LargeVocabulary:
    """150,000 tokens of made-up words, as many as in current vocabularies."""

    def __init__(self, size=150_000):
        rng = random.Random(1)
        letters = "etaoinshrdlucmfwypvbgkjqxz"
        made = {"".join(rng.choices(letters, k=rng.randint(2, 9))) for _ in range(size)}
        made |= {" " + word for word in list(made)[: size // 2]} | {'":', '{"', '",', '"}', "  ", "\n  "}
        self.pieces = [bytes([b]) for b in range(256)] + [b"<eos>"] + sorted(w.encode() for w in made)[: size - 257]
        self.size = len(self.pieces)
        self.ends = frozenset({256})
        self.control = frozenset({256})

    def tokenize(self, text, *, add_special, parse_special):
        return list(text.encode())


def constraining():
    vocabulary = LargeVocabulary()
    compiler = ConstraintCompiler(vocabulary)
    began = time.perf_counter()
    compiler._table()
    print(f"token table of {vocabulary.size}: {time.perf_counter() - began:.2f} s, once for each model")
    constraint = Constraint(kind="json_schema", source=json.dumps(SCHEMA))
    print(f"compile a schema: {timed(lambda: compiler.compile(constraint)) * 1e3:.2f} ms")
    state = compiler.compile(constraint)
    for byte in b'{"name": "abc':
        state.accept(byte)
    row = np.random.default_rng(0).standard_normal(vocabulary.size).astype(np.float32)
    print(f"allows: {timed(lambda: state.allows(ord('x')), 2000) * 1e6:.2f} us")
    print(f"mask a row: {timed(lambda: state.mask(row.copy()), 200) * 1e6 - timed(row.copy, 200) * 1e6:.0f} us")


if __name__ == "__main__":
    asyncio.run(rendering())
    parsing()
    constraining()
