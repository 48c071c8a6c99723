"""The cases of the tool-call evaluation, a little over thirty."""

import json
from typing import Any

from app.evals.tool_calls.cases import (
    ADD,
    ALL,
    CONVERT,
    EDIT,
    EVENT,
    MAIL,
    ORDER,
    READ,
    RUN,
    SEARCH,
    STRING,
    TIMER,
    UNITS,
    WEATHER,
    Calls,
    Case,
    Category,
    Check,
    calls,
    no_call,
    tool,
    user,
)


def _case(name: str, category: Category, text: str, tools: tuple[dict[str, Any], ...], check: Check) -> Case:
    return Case(name=name, category=category, messages=user(text), tools=tools, check=check)


_WORDS = "the quiet harbour keeps its boats behind a long stone wall while gulls follow the evening ferry"


def _filler(num_words: int) -> str:
    """Deterministic filler text around a request."""
    words = _WORDS.split()
    return " ".join(words[(i * 7) % len(words)] for i in range(num_words))


def _schema_check(text: str, tool_calls: Calls) -> str | None:
    if tool_calls:
        return "called a tool where JSON was asked for"
    try:
        value = json.loads(text)
    except ValueError:
        return f"no JSON: {text[:120]!r}"
    fits = (
        isinstance(value, dict)
        and set(value) == {"name", "age"}
        and isinstance(value["name"], str)
        and isinstance(value["age"], int)
    )
    return None if fits else f"does not fit the schema: {text[:120]!r}"


def _follow_up(question: str, name: str, arguments: dict[str, Any], result: str) -> tuple[dict[str, Any], ...]:
    call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    return (
        *user(question),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": result},
    )


_PERSON = {
    "type": "json_schema",
    "json_schema": {
        "name": "person",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
            "required": ["name", "age"],
            "additionalProperties": False,
        },
    },
}
_BIG_TOOL = tool("log", "Write a log entry.", entry={"type": "object"})
_DEEP = {"service": {"name": "web", "limits": {"cpu": 2, "memory": "4G"}}}


def suite() -> list[Case]:
    """All cases, always in the same order."""
    return [
        _case(
            "weather",
            "single",
            "What is the weather in Oslo?",
            (WEATHER,),
            calls(("get_weather", {"city": "Oslo"})),
        ),
        _case("integers", "single", "Add 17 and 25 with the tool.", (ADD,), calls(("add", {"a": 17, "b": 25}))),
        _case("path", "single", "Read src/main.py.", (READ,), calls(("read_file", {"path": "src/main.py"}))),
        _case(
            "quotes",
            "single",
            'Search the project for the text: say "hi"',
            (SEARCH,),
            calls(("search", {"text": 'say "hi"'})),
        ),
        _case(
            "timer",
            "single",
            "Set a timer for a quarter of an hour.",
            (TIMER,),
            calls(("set_timer", {"minutes": 15})),
        ),
        _case(
            "command",
            "single",
            "Run git status --short.",
            (RUN,),
            calls(("run", {"argv": ["git", "status", "--short"]})),
        ),
        _case(
            "enumeration",
            "single",
            "How warm is it in Boston, in degrees Fahrenheit?",
            (UNITS,),
            calls(("get_weather", {"city": "Boston", "unit": "fahrenheit"})),
        ),
        _case(
            "unicode",
            "single",
            "What is the weather in Zürich?",
            (WEATHER,),
            calls(("get_weather", {"city": "Zürich"})),
        ),
        _case("of many: add", "choice", "Add 3 and 4 with the tool.", ALL, calls(("add", {"a": 3, "b": 4}))),
        _case("of many: read", "choice", "Show me README.md.", ALL, calls(("read_file", {"path": "README.md"}))),
        _case(
            "of many: convert",
            "choice",
            "How much are 12.5 USD in EUR?",
            ALL,
            calls(("convert", {"amount": 12.5, "source": "USD", "target": "EUR"})),
        ),
        _case("of many: timer", "choice", "Wake me in 20 minutes.", ALL, calls(("set_timer", {"minutes": 20}))),
        _case(
            "two cities",
            "parallel",
            "What is the weather in Paris and in Rome? Ask for both at once.",
            (WEATHER,),
            calls(("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Rome"})),
        ),
        _case(
            "three files",
            "parallel",
            "Read a.py, b.py and c.py, all at once.",
            (READ,),
            calls(*(("read_file", {"path": f"{name}.py"}) for name in "abc")),
        ),
        _case(
            "two tools",
            "parallel",
            "At once: set a timer for 5 minutes and read notes.txt.",
            ALL,
            calls(("set_timer", {"minutes": 5}), ("read_file", {"path": "notes.txt"})),
        ),
        _case(
            "four sums",
            "parallel",
            "With the tool, all at once: 1+2, 3+4, 5+6 and 7+8.",
            (ADD,),
            calls(*(("add", {"a": n, "b": n + 1}) for n in (1, 3, 5, 7))),
        ),
        _case(
            "attendees",
            "nested",
            "Create the event 'Review' on 2026-03-02 at 14:00 with Ann (ann@x.org) and Bo (bo@x.org).",
            (EVENT,),
            calls(
                (
                    "create_event",
                    {
                        "title": "Review",
                        "start": "2026-03-02T14:00",
                        "attendees": [{"name": "Ann", "mail": "ann@x.org"}, {"name": "Bo", "mail": "bo@x.org"}],
                    },
                )
            ),
        ),
        _case(
            "order",
            "nested",
            "Order 2 of sku A-1 and 5 of sku B-2 for Jo Park, who lives at 1 Elm Street, Bath.",
            (ORDER,),
            calls(
                (
                    "place_order",
                    {
                        "customer": {"name": "Jo Park"},
                        "items": [{"sku": "A-1", "quantity": 2}, {"sku": "B-2", "quantity": 5}],
                    },
                )
            ),
        ),
        _case(
            "code",
            "nested",
            'In a.py replace the text `x = 1` by two lines: `x = 1` and then `y = "two"`.',
            (EDIT,),
            calls(("edit", {"path": "a.py", "search": "x = 1", "replace": 'x = 1\ny = "two"'})),
        ),
        _case(
            "mail",
            "nested",
            "Mail bo@x.org with the subject Lunch and the body: At 12? Yes/No",
            (MAIL,),
            calls(("send_mail", {"to": "bo@x.org", "subject": "Lunch", "body": "At 12? Yes/No"})),
        ),
        _case(
            "deep object",
            "nested",
            f"Write the log entry {json.dumps(_DEEP)}",
            (_BIG_TOOL,),
            calls(("log", {"entry": _DEEP})),
        ),
        _case("greeting", "refusal", "Hello! How are you?", ALL, no_call()),
        _case("knowledge", "refusal", "What is the capital of France? Answer in one word.", ALL, no_call("Paris")),
        _case("no such tool", "refusal", "Please play some music.", (ADD, READ), no_call()),
        _case(
            "missing value",
            "refusal",
            "Convert some money for me.",
            (CONVERT,),
            no_call("amount", "how much", "currency", "which", "?"),
        ),
        Case(
            name="choice none",
            category="refusal",
            messages=user("What is the weather in Oslo?"),
            tools=(WEATHER,),
            check=no_call(),
            options={"tool_choice": "none"},
        ),
        _case(
            "request at the end",
            "long context",
            f"Notes:\n{_filler(900)}\n\nIgnore the notes. Add 40 and 2 with the tool.",
            ALL,
            calls(("add", {"a": 40, "b": 2})),
        ),
        _case(
            "request at the start",
            "long context",
            f"Read config/app.toml. The notes below do not matter.\n\n{_filler(900)}",
            ALL,
            calls(("read_file", {"path": "config/app.toml"})),
        ),
        _case(
            "value in the middle",
            "long context",
            f"{_filler(450)} The file to read is lib/needle.c. {_filler(450)}\n\nRead the file named above.",
            (READ, SEARCH),
            calls(("read_file", {"path": "lib/needle.c"})),
        ),
        Case(
            name="person",
            category="schema",
            messages=user("Ann is 31 years old. Give her as JSON."),
            tools=(),
            check=_schema_check,
            options={"response_format": _PERSON},
        ),
        Case(
            name="forced tool",
            category="schema",
            messages=user("It is sunny."),
            tools=(WEATHER, tool("note", "Take a note.", text=STRING)),
            check=calls(("note", {})),
            options={"tool_choice": {"type": "function", "function": {"name": "note"}}},
        ),
        Case(
            name="use the result",
            category="follow-up",
            messages=_follow_up("What is the weather in Oslo?", "get_weather", {"city": "Oslo"}, "7 degrees, rain"),
            tools=(WEATHER,),
            check=no_call("7", "rain"),
        ),
        Case(
            name="next step",
            category="follow-up",
            messages=_follow_up(
                "Find the file that defines parse_date, then read it.",
                "search",
                {"text": "parse_date"},
                "lib/dates.py:12: def parse_date(text):",
            ),
            tools=(SEARCH, READ),
            check=calls(("read_file", {"path": "lib/dates.py"})),
        ),
    ]
