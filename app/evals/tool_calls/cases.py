"""Cases of the tool-call evaluation: messages, available tools, and a check of the response."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Category = Literal[
    "single", "choice", "parallel", "nested", "refusal", "long context", "schema", "follow-up",
    "simple", "multiple", "irrelevance",
]  # fmt: skip

# (name, arguments) of the calls a model made, in order.
Calls = Sequence[tuple[str, Mapping[str, Any]]]
# A check returns the reason why a response is wrong, or None.
Check = Callable[[str, Calls], str | None]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One request. `messages` may contain earlier calls and their results."""

    name: str
    category: Category
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...]
    check: Check
    options: Mapping[str, Any] = field(default_factory=dict)


def tool(name: str, description: str, required: Sequence[str] = (), **properties: Any) -> dict[str, Any]:
    """Definition of a function tool."""
    schema = {"type": "object", "properties": properties, "required": list(required or properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


STRING, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
WEATHER = tool("get_weather", "Current weather of a city.", city=STRING)
UNITS = tool(
    "get_weather",
    "Current weather of a city.",
    ["city"],
    city=STRING,
    unit={"type": "string", "enum": ["celsius", "fahrenheit"]},
)
ADD = tool("add", "Add two integers.", a=INTEGER, b=INTEGER)
READ = tool("read_file", "Read a text file of the project.", path=STRING)
SEARCH = tool("search", "Search the project for a text.", text=STRING)
MAIL = tool("send_mail", "Send a mail.", to=STRING, subject=STRING, body=STRING)
TIMER = tool("set_timer", "Set a timer.", minutes=INTEGER)
RUN = tool("run", "Run a command without a shell.", argv={"type": "array", "items": STRING})
CONVERT = tool("convert", "Convert an amount of money.", amount=NUMBER, source=STRING, target=STRING)
EVENT = tool(
    "create_event",
    "Create a calendar event.",
    title=STRING,
    start={"type": "string", "description": "ISO 8601 local time"},
    attendees={"type": "array", "items": {"type": "object", "properties": {"name": STRING, "mail": STRING}}},
)
ORDER = tool(
    "place_order",
    "Place an order.",
    customer={"type": "object", "properties": {"name": STRING, "address": {"type": "object"}}},
    items={
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"sku": STRING, "quantity": INTEGER},
            "required": ["sku", "quantity"],
        },
    },
)
EDIT = tool("edit", "Replace a text in a file.", path=STRING, search=STRING, replace=STRING)
ALL = (WEATHER, ADD, READ, SEARCH, MAIL, TIMER, RUN, CONVERT)


def user(text: str) -> tuple[dict[str, Any], ...]:
    """A conversation with one user message."""
    return ({"role": "user", "content": text},)


def same(value: Any, expected: Any) -> bool:
    """Compare values: ignores case and outer spaces, 3 equals 3.0, and a text may contain `expected`."""
    if isinstance(expected, str):
        return isinstance(value, str) and expected.strip().casefold() in value.strip().casefold()
    if isinstance(expected, Mapping):
        return isinstance(value, Mapping) and all(k in value and same(value[k], v) for k, v in expected.items())
    if isinstance(expected, list):
        return (
            isinstance(value, list)
            and len(value) == len(expected)
            and all(same(a, b) for a, b in zip(value, expected, strict=True))
        )
    return not isinstance(value, bool) and bool(value == expected)


def calls(*expected: tuple[str, Mapping[str, Any]]) -> Check:
    """Check for exactly these calls, in any order."""

    def check(text: str, tool_calls: Calls) -> str | None:
        del text
        unmatched = list(tool_calls)
        for name, arguments in expected:
            match = next((c for c in unmatched if c[0] == name and same(c[1], arguments)), None)
            if match is None:
                return f"no call {name}({dict(arguments)}); made: {[(n, dict(a)) for n, a in tool_calls]}"
            unmatched.remove(match)
        return f"needless calls: {[(n, dict(a)) for n, a in unmatched]}" if unmatched else None

    return check


def no_call(*words: str) -> Check:
    """Check for a text response without any call, which contains one of `words` if some are given."""

    def check(text: str, tool_calls: Calls) -> str | None:
        if tool_calls:
            return f"called {[name for name, _ in tool_calls]} where none was needed"
        if not text.strip():
            return "the answer is empty"
        if words and not any(word.casefold() in text.casefold() for word in words):
            return f"the answer says none of {words}: {text[:120]!r}"
        return None

    return check
