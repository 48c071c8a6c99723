"""The render child: a process that renders untrusted templates and may be killed at any time."""

import json
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from jinja2 import Template, TemplateError, TemplateSyntaxError
from jinja2.exceptions import SecurityError

from engine.chat import child_service, template_messages
from engine.chat.builtin import CHATML, function_schema
from engine.chat.jinja_env import TemplateRefusal, environment
from engine.chat.reasoning import close_open_reasoning
from engine.chat.render_protocol import (
    MAX_PROMPT_CHARS,
    RenderAnswer,
    RenderJob,
    RenderRefused,
    decode_job,
    encode,
)
from engine.chat.template_features import probe
from engine.chat.tools.dialects import choose
from engine.chat.types import Message, Rendered, TemplateTraits

# Everything that a template's own code can raise besides Jinja's errors.
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


class CompiledTemplate:
    """A template ready to render, with its traits."""

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
        """One rendering. Without tools the variable is None, or empty where a template goes through it."""
        parts: list[str] = []
        size = 0
        today = datetime.now().astimezone()
        defaults = {"enable_thinking": True, "date_string": today.strftime("%d %b %Y"), **self._tokens}
        names = {**defaults, **variables, "messages": list(messages), "tools": tools or self._no_tools}
        if "functions" in self.source and "datetime" in self.source:
            # The variables of firefunction, where others have `tools`.
            names.setdefault("functions", json.dumps(tools or []))
            names.setdefault("datetime", today.strftime("%b %d %Y"))
        for part in self._template.generate(add_generation_prompt=add_generation_prompt, **names):
            size += len(part)
            if size > MAX_PROMPT_CHARS:
                raise SecurityError(f"more than {MAX_PROMPT_CHARS} characters of output")
            parts.append(part)
        return "".join(parts)

    def _renders_without_tools(self) -> bool:
        """Templates that were written for conversations with tools only may not test whether there are any."""
        try:
            self.render([{"role": "user", "content": "x"}], None, add_generation_prompt=False)
        except TypeError:
            return False
        except (TemplateError, *_TEMPLATE_FAULTS):
            return True
        return True


class Renderer:
    """Answers jobs, keeping the last few templates compiled."""

    def __init__(self) -> None:
        self._compiled: dict[tuple[str, str, str], CompiledTemplate] = {}

    def answer(self, body: bytes) -> bytes:
        """One job to one answer, both msgpack. Running out of memory ends the process."""
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
        if len(self._compiled) > _MAX_TEMPLATES:
            del self._compiled[next(iter(self._compiled))]
        return compiled

    def render(self, job: RenderJob) -> Rendered:
        """Render as asked; where the template refuses, adapt the conversation and say how."""
        template = self._template(job)
        messages, repairs = _fit_traits(job, template)
        mends = (
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
            mended: list[Message] = list(messages)
            for words, mend in mends:
                changed = mend(mended)
                if changed == mended:
                    continue
                mended = changed
                repairs = (*repairs, words)
                try:
                    return _finish(job, template, mended, repairs)
                except (TemplateError, *_TEMPLATE_FAULTS):
                    continue
            raise first from None


def _fit_traits(job: RenderJob, template: CompiledTemplate) -> tuple[Sequence[Message], tuple[str, ...]]:
    """Say in plain text what the template has no place for."""
    traits, dialect = template.traits, template.dialect
    messages: Sequence[Message] = job.messages
    repairs: tuple[str, ...] = ()
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
    """Render with and without the generation prompt; the difference is the head of the answer."""
    traits = template.traits
    tools = [function_schema(tool) for tool in job.tools] if traits.tools else []
    continued: Message | None = None
    if job.continue_final and messages and messages[-1].role == "assistant":
        continued = messages[-1]
        messages = messages[:-1]
    dicts = template_messages.as_dicts(messages, traits, template.source)
    open_answer = job.add_generation_prompt or continued is not None
    prompt = template.render(dicts, tools or None, add_generation_prompt=open_answer, **job.variables)
    prefill = ""
    if open_answer:
        closed = template.render(dicts, tools or None, add_generation_prompt=False, **job.variables)
        prefill = _added(closed, prompt)
    if continued is not None:
        text = close_open_reasoning(
            prefill, continued.reasoning or "", template_messages.flatten(continued.content)
        )
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
    """What `opened` has after the part it shares with `closed`."""
    if opened.startswith(closed):
        return opened[len(closed) :]
    shared = next((i for i, (a, b) in enumerate(zip(closed, opened, strict=False)) if a != b), len(closed))
    return opened[shared:]


def _template_line(error: BaseException) -> int:
    """The innermost line of the template in a traceback, 0 if it never got there."""
    line = 0
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


if __name__ == "__main__":
    child_service.serve(Renderer().answer)
