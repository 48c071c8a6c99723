"""One conversation turn, whatever protocol asked: prompt, generation, and the answer taken apart while it streams."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final, Literal

import msgspec

from engine.chat import structured
from engine.chat.events import AnswerEvent, CallEnded
from engine.chat.tools.dialects import choose
from engine.chat.tools.parser import AnswerParser
from engine.chat.types import ChatTemplate, Message, NamedTool, Rendered, ToolChoice, ToolDefinition
from engine.errors import InputFault
from engine.pool import LoadedModel
from engine.server.state import ServerState
from engine.types import Constraint, Delta, Done, GenerationRequest, Image, SamplingParams, Started

# Words of `reasoning_effort` that templates know; `none` and `minimal` also switch reasoning off.
EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What a protocol's request says. `thinking` None leaves reasoning to the model's template.

    `form` constrains the answer, and `form_param` names the field it came from. A turn after which the model
    must have called a tool has `tool_choice` `required` or names the tool.
    """

    model: str
    messages: list[Message]
    tools: tuple[ToolDefinition, ...] = ()
    tool_choice: ToolChoice = "auto"
    parallel_calls: bool = True
    form: Constraint | None = None
    form_param: str = "response_format"
    sampling: SamplingParams = SamplingParams()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    thinking: bool | None = None
    effort: str | None = None
    template_args: dict[str, Any] = {}


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a turn."""

    reason: Literal["stop", "length", "tool_calls", "cancelled", "error"]
    done: Done


TurnEvent = Started | AnswerEvent | Finished


class Turn:
    """A turn that is ready to run. `model` serves it; `rendered` is its prompt."""

    def __init__(self, state: ServerState, ask: Ask, model: LoadedModel, rendered: Rendered) -> None:
        self._state = state
        self._ask = ask
        self.model = model
        self.rendered = rendered
        facts = model.facts
        assert facts is not None
        self.n_ctx = facts.n_ctx
        tools = ask.tools if ask.tool_choice != "none" else ()
        self._dialect = choose(facts.chat_template)
        self._parser = AnswerParser(self._dialect, tools, rendered.prefill)

    def request(self) -> GenerationRequest:
        """What the runner is asked."""
        ask = self._ask
        form = ask.form
        if form is not None:
            form = structured.after_reasoning(form, self._dialect.reasoning, self.rendered.prefill)
        return GenerationRequest(
            prompt=self.rendered.prompt,
            add_special=self.rendered.add_special,
            max_tokens=ask.max_tokens,
            stop=ask.stop,
            sampling=ask.sampling,
            images=tuple(Image(data=i.data) for i in self.rendered.images),
            constraint=form,
            keep_special=True,
        )

    async def events(self) -> AsyncGenerator[TurnEvent, None]:
        """The answer as it comes; leaving early cancels it."""
        parser = self._parser
        calls = 0
        async with aclosing(self._state.pool.generate(self.model, self.request())) as generation:
            async for event in generation:
                if isinstance(event, Delta):
                    for part in parser.feed(event.text):
                        calls += isinstance(part, CallEnded)
                        yield part
                elif isinstance(event, Done):
                    for part in parser.finish(cut=event.finish_reason == "length"):
                        calls += isinstance(part, CallEnded)
                        yield part
                    self._state.metrics.finished(self.model.id, event)
                    called = calls and event.finish_reason == "stop"
                    yield Finished(reason="tool_calls" if called else event.finish_reason, done=event)
                else:
                    yield event


async def prepare(state: ServerState, ask: Ask) -> Turn:
    """Load the model and make the prompt.

    Raises: what the pool raises; BadTemplate, InputFault: the conversation cannot be put.
    """
    tools = _offered(ask)
    model = await state.pool.acquire(ask.model)
    facts = model.facts
    assert facts is not None
    template = ChatTemplate(source=facts.chat_template, bos=facts.bos, eos=facts.eos)
    variables = dict(ask.template_args)
    thinking = False if ask.effort in {"none", "minimal"} and ask.thinking is None else ask.thinking
    if thinking is not None:
        variables.setdefault("enable_thinking", thinking)
        variables.setdefault("thinking", thinking)
    if ask.effort is not None:
        variables.setdefault("reasoning_effort", ask.effort)
    rendered = await state.renderer.render(template, ask.messages, tools, **variables)
    return Turn(state, ask, model, rendered)


def _offered(ask: Ask) -> tuple[ToolDefinition, ...]:
    """The tools the model is told of.

    Raises: InputFault: two of one name, or a choice of none of them.
    """
    names = [tool.name for tool in ask.tools]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputFault(f"Two tools are named {twice!r}.", "tools")
    if isinstance(ask.tool_choice, NamedTool):
        if ask.tool_choice.name not in names:
            raise InputFault(
                f"tool_choice names {ask.tool_choice.name!r}, which is not among the tools.", "tool_choice"
            )
        return tuple(tool for tool in ask.tools if tool.name == ask.tool_choice.name)
    if ask.tool_choice == "required" and not names:
        raise InputFault("tool_choice requires a tool, but tools is empty.", "tool_choice")
    return ask.tools if ask.tool_choice != "none" else ()
