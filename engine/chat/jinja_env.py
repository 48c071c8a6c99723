"""The Jinja environment that untrusted templates render in. Used only inside the render child.

Templates expect what Hugging Face transformers gives them: trimmed blocks, loop controls, a `generation`
tag, a `tojson` that neither escapes HTML nor sorts keys, `strftime_now` and `raise_exception`.
"""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

# Longest text one `*` or one format may make, in characters. Real templates repeat a few dozen.
MAX_REPEAT_CHARS = 1 << 20


class TemplateRefusal(TemplateError):
    """The template itself called `raise_exception`."""


class GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks text for training; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012 - Jinja reads a plain class attribute

    def parse(self, parser: Parser) -> nodes.Node:
        """Keep the body as an ordinary block."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class BoundedSandbox(ImmutableSandboxedEnvironment):
    """An immutable sandbox that also refuses to multiply text or numbers without limit."""

    intercepted_binops = frozenset(["*", "**", "%"])

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Lists may grow and shrink: templates keep queues in them, and all data of a render is its own."""
        if isinstance(obj, list) and attr in {"append", "extend", "pop"}:
            return True
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Refuse `'A' * 1e9`, huge powers and `%` with a giant field width."""
        if operator == "*":
            for text, count in ((left, right), (right, left)):
                repeats = isinstance(text, (str, bytes, list, tuple)) and isinstance(count, int)
                if repeats and len(text) * count > MAX_REPEAT_CHARS:
                    raise SecurityError(f"a repetition of {len(text)} x {count} elements")
        elif operator == "**":
            if isinstance(right, (int, float)) and abs(right) > 64:  # noqa: PLR2004 - beyond any date or size
                raise SecurityError(f"a power of {right}")
        elif isinstance(left, str) and _widest_number(left) > MAX_REPEAT_CHARS:
            raise SecurityError("a format with a giant field width")
        return super().call_binop(context, operator, left, right)


def _widest_number(text: str) -> int:
    """The largest run of digits in a format, as a number; `*` widths count as too wide."""
    widest = 0
    digits = ""
    for char in text + " ":
        if char.isdigit():
            digits += char
        elif digits:
            widest = max(widest, int(digits[:12]))
            digits = ""
    return MAX_REPEAT_CHARS + 1 if "%*" in text else widest


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers' `tojson` writes it."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> NoReturn:
    raise TemplateRefusal(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().astimezone().strftime(layout)


def environment() -> BoundedSandbox:
    """A fresh environment with everything chat templates use."""
    env = BoundedSandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationTag])
    env.filters["tojson"] = to_json
    env.filters["from_json"] = json.loads
    # Nothing is escaped here; Jinja's own `safe` would make what is added to its result escape itself.
    env.filters["safe"] = str
    helpers: dict[str, Callable[..., Any]] = {
        "raise_exception": _refuse,
        "strftime_now": _strftime_now,
    }
    env.globals.update(helpers)
    return env
