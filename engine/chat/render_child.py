"""Child process that renders untrusted templates and may be killed at any time."""

import json
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final, NoReturn

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from devices import child_service
from engine.chat import template_messages
from engine.chat.builtin import CHATML, function_schema
from engine.chat.render_protocol import (
    MAX_PROMPT_CHARS,
    RenderAnswer,
    RenderJob,
    RenderRefused,
    decode_job,
    encode,
)
from engine.chat.tools.call_rendering import continuation
from engine.chat.tools.dialects import choose
from engine.chat.types import Message, Rendered, TemplateTraits

# Errors that a template's own code can raise in addition to Jinja's.
_TEMPLATE_FAULTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
_MAX_TEMPLATES = 8
_NO_LANGUAGES: Final = (
    "the template translates and no languages were named, so both are en-GB: set source_lang_code and "
    "target_lang_code in the text part or in chat_template_kwargs"
)


class CompiledTemplate:
    """A compiled template with its traits."""

    def __init__(self, source: str, bos: str, eos: str) -> None:
        self.source = source
        self._template: Template = environment().from_string(source)
        self._tokens = {"bos_token": bos, "eos_token": eos, "pad_token": "", "unk_token": ""}
        self.dialect = choose(source)
        self._no_tools: list[dict[str, Any]] | None = None
        if not self._renders_without_tools():
            self._no_tools = []
        indexed = self.dialect.id_style == "indexed"
        self.traits: TemplateTraits = probe(self.render, indexed_ids=indexed)

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        *,
        add_generation_prompt: bool,
        **variables: Any,
    ) -> str:
        """Render once. Without tools the variable is None, or empty if the template iterates over it."""
        parts: list[str] = []
        size = 0
        today = datetime.now().astimezone()
        defaults = {"enable_thinking": True, "date_string": today.strftime("%d %b %Y"), **self._tokens}
        names = {**defaults, **variables, "messages": list(messages), "tools": tools or self._no_tools}
        if "functions" in self.source and "datetime" in self.source:
            # Variables of firefunction, which it uses instead of `tools`.
            names.setdefault("functions", json.dumps(tools or []))
            names.setdefault("datetime", today.strftime("%b %d %Y"))
        for part in self._template.generate(add_generation_prompt=add_generation_prompt, **names):
            size += len(part)
            if size > MAX_PROMPT_CHARS:
                raise SecurityError(f"more than {MAX_PROMPT_CHARS} characters of output")
            parts.append(part)
        return "".join(parts)

    def _renders_without_tools(self) -> bool:
        """False for templates written only for conversations with tools, which may not test for None."""
        try:
            self.render([{"role": "user", "content": "x"}], None, add_generation_prompt=False)
        except TypeError:
            return False
        except (TemplateError, *_TEMPLATE_FAULTS):
            return True
        return True


class Renderer:
    """Runs render jobs and caches the last compiled templates."""

    def __init__(self, max_templates: int = _MAX_TEMPLATES) -> None:
        self._max_templates = max_templates
        self._compiled: dict[tuple[str, str, str], CompiledTemplate] = {}

    def answer(self, body: bytes) -> bytes:
        """Run one job; job and result are msgpack. Running out of memory ends the process."""
        job = decode_job(body)
        try:
            return encode(RenderAnswer(rendered=self.render(job)))
        except TemplateRefusal as refusal:
            return encode(RenderRefused(reason=str(refusal.message), by_template=True))
        except TemplateSyntaxError as error:
            return encode(
                RenderRefused(reason=f"syntax error: {error.message}", by_template=False, line=error.lineno)
            )
        except (TemplateError, *_TEMPLATE_FAULTS) as error:
            reason = f"{type(error).__name__}: {str(error)[:500]}"
            return encode(RenderRefused(reason=reason, by_template=False, line=_template_line(error)))
        except MemoryError:
            sys.exit("out of memory while rendering")

    def _template(self, job: RenderJob) -> CompiledTemplate:
        source = job.template.source
        key = (source if source is not None else CHATML, job.template.bos, job.template.eos)
        compiled = self._compiled.pop(key, None) or CompiledTemplate(*key)
        self._compiled[key] = compiled
        if len(self._compiled) > self._max_templates:
            del self._compiled[next(iter(self._compiled))]
        return compiled

    def render(self, job: RenderJob) -> Rendered:
        """Render a job; if the template refuses, adapt the conversation and report the changes."""
        template = self._template(job)
        messages, repairs = _fit_traits(job, template)
        fixes = (
            ("system messages were moved to the start", template_messages.hoist_system),
            ("neighbouring messages of one role were joined", template_messages.merge_turns),
            (
                "a short answer was put between a tool's result and the next question",
                template_messages.answer_results,
            ),
            ("the system message was put into the first user message", template_messages.fold_system),
        )
        try:
            return _finish(job, template, messages, repairs)
        except (TemplateError, *_TEMPLATE_FAULTS) as first:
            fixed: list[Message] = list(messages)
            for words, fix in fixes:
                changed = fix(fixed)
                if changed == fixed:
                    continue
                fixed = changed
                repairs = (*repairs, words)
                try:
                    return _finish(job, template, fixed, repairs)
                except (TemplateError, *_TEMPLATE_FAULTS):
                    continue
            raise first from None


def _fit_traits(job: RenderJob, template: CompiledTemplate) -> tuple[Sequence[Message], tuple[str, ...]]:
    """Write as plain text what the template does not support."""
    traits, dialect = template.traits, template.dialect
    messages: Sequence[Message] = job.messages
    repairs: tuple[str, ...] = ()
    if template_messages.names_no_language(messages, template.source, job.variables):
        repairs += (_NO_LANGUAGES,)
    if any(len(m.tool_calls) > 1 for m in messages) and traits.tool_calls and not traits.parallel_calls:
        messages = template_messages.one_call_a_turn(messages)
        repairs += ("parallel calls were written one after the other",)
    if any(m.tool_calls for m in messages) and not traits.tool_calls:
        messages = template_messages.spell_calls(messages, dialect)
        repairs += ("the template does not write calls: they were put into the answers' text",)
    if any(m.role == "tool" for m in messages) and not (
        traits.tool_results and (traits.tools or traits.tool_calls)
    ):
        messages = template_messages.spell_results(messages)
        repairs += ("the template has no tool role: results were put into user messages",)
    if job.tools and not traits.tools:
        messages = template_messages.describe_tools(messages, job.tools, dialect)
        repairs += ("the template has no tools: they were described in the system message",)
    if not traits.system_role and any(m.role in {"system", "developer"} for m in messages):
        messages = template_messages.fold_system(messages)
        repairs += ("the template has no system role: its text was put into the first user message",)
    return messages, repairs


def _finish(
    job: RenderJob, template: CompiledTemplate, messages: Sequence[Message], repairs: tuple[str, ...]
) -> Rendered:
    """Render with and without the generation prompt; the difference is the head of the response."""
    traits = template.traits
    tools = [function_schema(tool) for tool in job.tools] if traits.tools else []
    continued: Message | None = None
    if job.continue_final and messages and messages[-1].role == "assistant":
        continued = messages[-1]
        messages = messages[:-1]
    dicts = template_messages.as_dicts(messages, traits, template.source, job.variables)
    open_answer = job.add_generation_prompt or continued is not None
    prompt = template.render(dicts, tools or None, add_generation_prompt=open_answer, **job.variables)
    prefill = ""
    if open_answer:
        closed = template.render(dicts, tools or None, add_generation_prompt=False, **job.variables)
        prefill = _added(closed, prompt)
    if continued is not None:
        content = template_messages.flatten(continued.content)
        text = continuation(choose(template.source), template.source, prefill, continued.reasoning or "", content)
        prompt += text
        prefill += text
    return Rendered(
        prompt=prompt,
        prefill=prefill,
        add_special=not (job.template.bos and prompt.startswith(job.template.bos)),
        images=template_messages.images(job.messages),
        repairs=repairs,
        traits=traits,
    )


def _added(closed: str, opened: str) -> str:
    """The part of `opened` after the prefix that it shares with `closed`."""
    if opened.startswith(closed):
        return opened[len(closed) :]
    shared, least_different = 0, min(len(closed), len(opened)) + 1
    while shared + 1 < least_different:  # letter by letter, a long conversation would take seconds
        middle = (shared + least_different) // 2
        if closed[shared:middle] == opened[shared:middle]:
            shared = middle
        else:
            least_different = middle
    return opened[shared:]


def _template_line(error: BaseException) -> int:
    """The innermost template line in a traceback; 0 if there is none."""
    line = 0
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


Render = Callable[..., str]

_SYSTEM, _USER, _ANSWER, _THOUGHT = "qzsystemqz", "qzuserqz", "qzanswerqz", "qzthoughtqz"
_TOOL, _KEY, _VALUE, _RESULT, _OTHER = "qztoolqz", "qzkeyqz", "qzvalueqz", "qzresultqz", "qzotherqz"
_ID = "qzcallid1"  # nine letters and digits, which Mistral's templates require
_ID_2 = "qzcallid2"


def _tool(name: str) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {_KEY: {"type": "string", "description": "probe"}},
        "required": [_KEY],
    }
    function = {"name": name, "description": "probe", "parameters": parameters}
    return {"type": "function", "function": function}


def _call(call_id: str, name: str, arguments: object) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _try(render: Render, messages: Sequence[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> str:
    """The rendered text, or "" if the template refuses or fails."""
    try:
        return render(messages, tools, add_generation_prompt=False)
    except (TemplateError, TypeError, ValueError, KeyError, AttributeError, IndexError, ArithmeticError):
        return ""


def probe(render: Render, *, indexed_ids: bool = False) -> TemplateTraits:
    """Detect the traits of a template.

    `render(messages, tools, add_generation_prompt=False)` renders it; about a dozen short renders are made.
    `indexed_ids`: the template reads the function's name from the call's id.
    """
    first_id, second_id = (f"functions.{_TOOL}:0", f"functions.{_OTHER}:1") if indexed_ids else (_ID, _ID_2)
    user: dict[str, Any] = {"role": "user", "content": _USER}
    typed = [{"type": "text", "text": _USER, **template_messages.LANGUAGES}]
    typed_content = _USER not in _try(render, [user]) and _USER in _try(
        render, [{"role": "user", "content": typed}]
    )
    if typed_content:
        user = {"role": "user", "content": typed}

    def content(text: str) -> Any:
        return [{"type": "text", "text": text}] if typed_content else text

    def turn(arguments: object, *more: dict[str, Any]) -> list[dict[str, Any]]:
        calls = [_call(first_id, _TOOL, arguments), *more]
        return [user, {"role": "assistant", "content": content(""), "tool_calls": calls}]

    tools = [_tool(_TOOL)]
    as_object = _try(render, turn({_KEY: _VALUE}), tools)
    as_text = _try(render, turn(f'{{"{_KEY}": "{_VALUE}"}}'), tools)
    arguments_as_text = not _shows_call(as_object) and _shows_call(as_text)
    arguments: object = f'{{"{_KEY}": "{_VALUE}"}}' if arguments_as_text else {_KEY: _VALUE}
    tool_calls = _shows_call(as_text if arguments_as_text else as_object)
    answers = [{"role": "tool", "tool_call_id": first_id, "name": _TOOL, "content": content(_RESULT)}]
    system = {"role": "system", "content": content(_SYSTEM)}
    thoughts = {
        "role": "assistant",
        "content": content(_ANSWER),
        "reasoning_content": _THOUGHT,
        "reasoning": _THOUGHT,
        "thinking": _THOUGHT,
    }
    return TemplateTraits(
        # Some templates are written only for conversations with tools.
        system_role=any(_SYSTEM in _try(render, [system, user], variant) for variant in (None, tools)),
        tools=_TOOL in _try(render, [user], tools),
        tool_calls=tool_calls,
        tool_results=_RESULT in _try(render, [*turn(arguments), *answers], tools),
        parallel_calls=tool_calls
        and _shows_both(
            _try(render, turn(arguments, _call(second_id, _OTHER, arguments)), [*tools, _tool(_OTHER)])
        ),
        arguments_as_text=arguments_as_text,
        typed_content=typed_content,
        reasoning=_THOUGHT in _try(render, [user, thoughts]) or _THOUGHT in _try(render, [user, thoughts, user]),
    )


def _shows_call(text: str) -> bool:
    """Whether a call is shown with its argument, and not as a Python dictionary."""
    start = text.rfind(_TOOL)
    tail = text[start:]
    return start >= 0 and _KEY in tail and _VALUE in tail and f"'{_KEY}'" not in tail and '\\"' not in tail


def _shows_both(text: str) -> bool:
    """Whether both calls of one turn are shown, in addition to their definitions."""
    return text.count(_TOOL) > 1 and text.rfind(_OTHER) > text.rfind(_VALUE, 0, text.rfind(_OTHER)) > 0


# The Jinja environment that untrusted templates render in. Used only inside the render child.
#
# Templates expect the features of Hugging Face transformers: trimmed blocks, loop controls, a `generation`
# tag, a `tojson` that neither escapes HTML nor sorts keys, `strftime_now` and `raise_exception`.

# Longest text that one `*` or one format may create, in characters. Real templates repeat a few dozen.
MAX_REPEAT_CHARS = 1 << 20


class TemplateRefusal(TemplateError):
    """The template itself called `raise_exception`."""


class GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks text for training; here it has no effect."""

    tags = {"generation"}  # noqa: RUF012 - Jinja reads a plain class attribute

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse the body as an ordinary block."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class BoundedSandbox(ImmutableSandboxedEnvironment):
    """An immutable sandbox that also limits the multiplication of text and numbers."""

    intercepted_binops = frozenset(["*", "**", "%"])

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Lists may change size: templates use them as queues, and each render has its own data."""
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
            if isinstance(right, (int, float)) and abs(right) > 64:
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
    """JSON as written by transformers' `tojson`."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> NoReturn:
    raise TemplateRefusal(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().astimezone().strftime(layout)


def environment() -> BoundedSandbox:
    """A new environment with everything that chat templates use."""
    env = BoundedSandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationTag])
    env.filters["tojson"] = to_json
    env.filters["from_json"] = json.loads
    # Nothing is escaped here; with Jinja's own `safe`, text added to its result would be escaped.
    env.filters["safe"] = str
    helpers: dict[str, Callable[..., Any]] = {
        "raise_exception": _refuse,
        "strftime_now": _strftime_now,
    }
    env.globals.update(helpers)
    return env


if __name__ == "__main__":
    child_service.serve(Renderer().answer)
