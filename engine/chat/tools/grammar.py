"""Builds a Lark grammar for the calls of a request, in the syntax of the model's dialect.

Names, frames and arguments are all enforced if the dialect's arguments are JSON or tags. If they have a separate
notation (Gemma, Python calls, nested tags), only the frame and the name are enforced.
"""

import json
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from engine.chat.tools.dialect import Dialect, Form, JsonCalls, NamedCalls, PythonCalls, Section, TaggedCalls
from engine.chat.tools.schema_types import allowed_types, properties, referred
from engine.chat.types import ToolDefinition
from engine.core.json_bounds import WHITESPACE

_HARMONY_HEADS: Final = (
    "<|channel|>commentary json",
    "<|channel|>commentary <|constrain|>json",
    " <|constrain|>json",
)
# Longer texts are not counted: each additional length is a state of the grammar.
_MAX_LENGTH: Final = 2048
_MAX_UNIONS: Final = 8  # unions within unions
_MADE_UP: Final = {"{index}": "/[0-9]{1,3}/", "{id}": "/[A-Za-z0-9]{8,10}/"}


class ToolGrammar(NamedTuple):
    """`opening` starts the calls; `continuation` is the grammar of the text after it, `whole` that of both."""

    opening: str
    continuation: str

    @property
    def whole(self) -> str:
        opening = f"{_text(self.opening)} " if self.opening else ""
        return self.continuation.replace("start: calls", f"start: {opening}calls", 1)


def tool_grammar(dialect: Dialect, tools: Sequence[ToolDefinition], *, parallel: bool) -> ToolGrammar:
    """The grammar of at least one call of one of these tools; of exactly one if not `parallel`."""
    rules: list[str] = []
    names = [f"tool_{i}" for i in range(len(tools))]
    form = dialect.forms[0]
    section = dialect.sections[0] if dialect.sections and not dialect.bare_first else Section("")
    if _is_harmony(dialect):
        opening, between = _harmony(tools, rules), ""
    else:
        for index, tool in enumerate(tools):
            rules.append(f"tool_{index}: {_call(form, tool, index, rules)}")
        opening, between = _frame(dialect, form, section)
    rules.append(f"one: {' | '.join(names)}")
    repeat = f" ({between} one)*" if parallel and between else ""
    lines = [f"start: calls{_closing(dialect, form, section)}", f"calls: one{repeat}", *rules]
    return ToolGrammar(opening, "\n".join(lines) + "\n")


def _closing(dialect: Dialect, form: Form, section: Section) -> str:
    if _is_harmony(dialect):
        return ""
    bracket = '"]"' if _is_list(form) else ""
    end = f"{section.gap}{section.ends[0]}" if section.ends else ""
    return " ".join(filter(None, ("", bracket, _text(end))))


def _is_harmony(dialect: Dialect) -> bool:
    return dialect.headers is not None and dialect.headers.call is not None


def _is_list(form: Form) -> bool:
    return isinstance(form, PythonCalls) or (isinstance(form, JsonCalls) and form.listed)


def _frame(dialect: Dialect, form: Form, section: Section) -> tuple[str, str]:
    """(opening, text between two calls)."""
    start = "" if section.start in dialect.seeds else section.start
    head = dialect.headers.end if dialect.headers else ""
    opening = f"{head}{start}{section.gap}"
    if _is_list(form):
        return f"{opening}[", '", "'
    if dialect.bare_first:
        return "", '"; "'
    if not section.single or not section.start:
        return opening, '"\\n"?'
    end = f"{section.gap}{section.ends[0]}" if section.ends else ""
    return opening, " ".join(filter(None, (_text(end), '"\\n"?', _text(f"{section.start}{section.gap}"))))


def _harmony(tools: Sequence[ToolDefinition], rules: list[str]) -> str:
    heads = " | ".join(map(_text, _HARMONY_HEADS))
    rules.append(f"head: {heads}")
    for index, tool in enumerate(tools):
        rules.append(f'tool_{index}: {_text(tool.name)} head "<|message|>" %json {_schema(tool)}')
    return " to=functions."


def _call(form: Form, tool: ToolDefinition, index: int, rules: list[str]) -> str:
    if isinstance(form, JsonCalls):
        if form.name_is_key:
            return f'{_text("{" + json.dumps(tool.name) + ": ")} %json {_schema(tool)} "}}"'
        head = f'{{"{form.keys[0]}": {json.dumps(tool.name, ensure_ascii=False)}, "{form.keys[1]}": '
        return f'{_text(head)} %json {_schema(tool)} "}}"'
    if isinstance(form, NamedCalls):
        header = _spelled(form.start + form.spelling, name=tool.name)
        ends = form.ends[0] if form.ends else ""
        if form.quote is not None:
            quote = _text(form.quote)
            # At most one blank at a time: weak models otherwise write white space forever.
            text = rf"/\s?[^<{{}}\s]+/ | /\s?/ {quote} /[^<]+/? {quote}"
            rules.append(f'own_{index}: ({text} | /\\s?/ "{{" own_{index} /\\s?/ "}}")*')
            return f'"call:" {_text(tool.name)} "{{" own_{index} "}}"'
        return " ".join(filter(None, (header, f"%json {_schema(tool)}", _text(ends))))
    if isinstance(form, PythonCalls):
        return f"{_text(tool.name + '(')} /([\\x20\\t]{{0,8}}[^\\s])*/ {_text(')')}"
    assert isinstance(form, TaggedCalls)
    return _tagged(form, tool, index, rules)


def _tagged(form: TaggedCalls, tool: ToolDefinition, index: int, rules: list[str]) -> str:
    gap = "\n" if form.newlines else ""
    name_end = form.name_end + gap if form.name_end != "\n" else "\n"
    parts = [_spelled(f"{form.start}{form.name_spelling}{name_end}", name=tool.name)]
    required = tool.parameters.get("required")
    required_names = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
    for number, (key, schema) in enumerate(properties(tool.parameters).items()):
        rule = f"arg_{index}_{number}"
        types = allowed_types(schema, tool.parameters)
        text = "string" in types
        spelled = form.key_spelling.replace("{is_text}", "true" if text else "false")
        spelled = spelled.replace("{type}", "string" if text else min(types, default="string"))
        before, _, after = f"{form.key_open}{spelled}{form.key_close}{form.value_open}{gap}".partition("{key}")
        opened = " ".join(filter(None, (_text(before), _client_literal(key), _text(after))))
        close = f"{gap}{form.value_close}".replace("{key}", key)
        choices = _choices(schema, tool.parameters)
        if choices and text and not form.nested:
            either = " | ".join(choices)
            rules.append(f'{rule}: {opened} ({either}) {_text(close)} "\\n"?')
        elif text or form.nested:
            value = "" if form.nested else _text_value(schema, tool.parameters)
            # A value must not contain its closing text; otherwise it could end there without matching its pattern.
            value = f"{value} & ~/(?s:.*){_escaped(close)}(?s:.*)/" if value else "/(?s:.*)/"
            rules.append(f"TEXT_{rule.upper()}: {value}")
            rules.append(f"text_{rule}[suffix={_text(close)}]: TEXT_{rule.upper()}")
            rules.append(f'{rule}: {opened} text_{rule} "\\n"?')
        else:
            schema_object = schema if isinstance(schema, dict) else {}
            defs = {key: value for key, value in tool.parameters.items() if key in {"$defs", "definitions"}}
            rules.append(f'{rule}: {opened} %json {embedded({**schema_object, **defs})} {_text(close)} "\\n"?')
        parts.append(rule if key in required_names else f"{rule}?")
    return " ".join(filter(None, (*parts, _text(form.end))))


def _choices(schema: Any, root: dict[str, Any], depth: int = 0) -> list[str]:
    """The alternatives of a parameter whose texts are all listed; empty if any other text is allowed."""
    referred_schema = referred(schema, root)
    if depth > _MAX_UNIONS:
        return []
    allowed = [referred_schema["const"]] if "const" in referred_schema else referred_schema.get("enum")
    if isinstance(allowed, list):
        texts = [value if isinstance(value, str) else json.dumps(value) for value in allowed]
        return [_client_literal(text) for text in texts] if all(texts) else []
    branches = referred_schema.get("anyOf", referred_schema.get("oneOf"))
    if isinstance(branches, list):
        each = [_choices(branch, root, depth + 1) for branch in branches]
        return [choice for choices in each for choice in choices] if all(each) else []
    if not depth or "string" in allowed_types(referred_schema, root):
        return []
    defs = {key: value for key, value in root.items() if key in {"$defs", "definitions"}}
    return [f"%json {embedded({**referred_schema, **defs})}"]


def _text_value(schema: Any, root: dict[str, Any]) -> str:
    """The terminal of a text parameter with a pattern or a length; empty if neither can be enforced."""
    if allowed_types(schema, root) != {"string"}:
        return ""
    referred_schema = referred(schema, root)
    pattern, least, most = (
        referred_schema.get("pattern"),
        referred_schema.get("minLength", 0),
        referred_schema.get("maxLength"),
    )
    parts = [f"/{whole}/"] if isinstance(pattern, str) and (whole := _whole_text(pattern)) else []
    if isinstance(least, int) and least <= _MAX_LENGTH and (most is None or isinstance(most, int)):
        bounded = most is not None and most <= _MAX_LENGTH
        if least or bounded:
            parts.append(f"/(?s:.{{{int(least)},{most if bounded else ''}}})/")
    return " & ".join(parts)


def _whole_text(pattern: str) -> str:
    """A pattern for the whole text from one that may match anywhere; empty if its anchors do not allow that."""
    begins, ends = pattern.startswith("^"), re.search(r"(?<!\\)(?:\\\\)*\$$", pattern) is not None
    inner = pattern[begins : len(pattern) - ends]
    depth = 0
    for char in re.sub(r"\\.|\[(?:\\.|[^\]\\])*\]", "", inner):
        depth += (char == "(") - (char == ")")
        if char in "^$\n" or (char == "|" and depth == 0 and (begins or ends)):
            return ""
    slashes = re.sub(r"(?<!\\)/", r"\/", inner)
    return f"{'' if begins else '(?s:.*)'}(?:{slashes}){'' if ends else '(?s:.*)'}"


def _client_literal(text: str) -> str:
    """A literal from the client: a control token's name in it is ordinary text."""
    return f"/{_escaped(text)}/" if "<" in text else _text(text)


def _escaped(text: str) -> str:
    return re.escape(text).replace("/", r"\/").replace("\n", "n").replace("\r", "r")


def _spelled(layout: str, *, name: str) -> str:
    """A layout as a sequence of literals, with patterns for values that the model generates."""
    out: list[str] = []
    remaining = layout.replace("{name}", name)
    while remaining:
        at, hole = min(((remaining.find(h), h) for h in _MADE_UP if h in remaining), default=(len(remaining), ""))
        out.append(_text(remaining[:at]))
        if hole:
            out.append(_MADE_UP[hole])
        remaining = remaining[at + len(hole) :]
    return " ".join(filter(None, out))


def _schema(tool: ToolDefinition) -> str:
    return embedded({"type": "object", **tool.parameters})


def embedded(schema: dict[str, Any]) -> str:
    """A schema inside a grammar; its JSON has no more white space than layout needs."""
    return json.dumps({**schema, "x-guidance": {"whitespace_pattern": WHITESPACE}}, ensure_ascii=False)


def _text(text: str) -> str:
    """A literal; empty for an empty text."""
    return json.dumps(text, ensure_ascii=False) if text else ""
