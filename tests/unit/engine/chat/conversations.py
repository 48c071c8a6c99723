"""The text that a real template renders for a turn with calls, used as model output."""

import json
from functools import cache
from pathlib import Path

from engine.chat.render_child import Renderer
from engine.chat.render_protocol import RenderJob
from engine.chat.types import (
    CallArguments,
    CallEnded,
    CallMalformed,
    CallStarted,
    ChatTemplate,
    Message,
    ReasoningDelta,
    TextDelta,
    ToolCall,
    ToolDefinition,
)

TEMPLATES = Path(__file__).parents[3] / "data" / "templates"
NAMES = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Name of the city"},
        "days": {"type": "integer", "description": "How many days"},
        "tags": {"type": "array", "items": {"type": "string"}, "description": "Labels"},
    },
    "required": ["city"],
}
TOOLS = tuple(
    ToolDefinition(name=name, description="Test tool", parameters=PARAMETERS)
    for name in ("get_weather", "get_time")
)
FIRST = {"city": 'Pa"ris\nx <b> é', "days": 3, "tags": ["a", "b"]}
SECOND = {"city": "Rome"}
QUESTION = Message(role="user", content="QUESTION")
RENDERER = Renderer(2 * len(NAMES))  # compiling all templates takes seconds


@cache
def source(name):
    return (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")


def render(name, messages, tools=TOOLS, *, add_generation_prompt=True, **variables):
    job = RenderJob(
        template=ChatTemplate(source=source(name), eos="</s>"),
        messages=tuple(messages),
        tools=tuple(tools),
        add_generation_prompt=add_generation_prompt,
        variables=variables,
    )
    return RENDERER.render(job)


@cache
def turn(name, num_calls=None):
    """(prefill, generated text, expected calls) of an answer with reasoning, text and calls."""
    opened = render(name, [QUESTION])
    ids = ("abcdefgh1", "abcdefgh2")
    expected = [("get_weather", FIRST), ("get_time", SECOND)]
    if num_calls is None:
        num_calls = 2 if opened.traits.parallel_calls or not opened.traits.tool_calls else 1
    calls = tuple(
        ToolCall(id=ids[i], name=tool, arguments=json.dumps(arguments))
        for i, (tool, arguments) in enumerate(expected[:num_calls])
    )
    answer = Message(role="assistant", content="PREAMBLE", reasoning="THOUGHT", tool_calls=calls)
    whole = render(name, [QUESTION, answer], add_generation_prompt=False).prompt
    tail, head = (text[text.rfind("QUESTION") + 8 :] for text in (whole, opened.prompt))
    shared = next(
        (i for i, (a, b) in enumerate(zip(tail, head, strict=False)) if a != b), min(len(tail), len(head))
    )
    if shared < len(head):
        # The template writes histories differently from openings: cut at the marker before the difference.
        shared = max((head.rfind(mark, 0, shared) + 1 for mark in ">\n]"), default=0)
    return head[:shared], tail[shared:], expected[:num_calls]


def collect(events):
    """(text, reasoning, calls, malformed) of a list of events."""
    text, reasoning, calls, malformed = "", "", [], []
    ended = set()
    for event in events:
        if isinstance(event, TextDelta):
            text += event.text
        elif isinstance(event, ReasoningDelta):
            reasoning += event.text
        elif isinstance(event, CallStarted):
            assert event.index == len(calls)
            calls.append([event.name, ""])
        elif isinstance(event, CallArguments):
            assert event.index == len(calls) - 1
            calls[-1][1] += event.delta
        elif isinstance(event, CallEnded):
            ended.add(event.index)
        elif isinstance(event, CallMalformed):
            malformed.append(event.text)
    read = [(name, json.loads(arguments) if i in ended else arguments) for i, (name, arguments) in enumerate(calls)]
    return text, reasoning, read, malformed
