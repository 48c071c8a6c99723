"""The chat pipeline of all protocols: from a request to a prompt, and from generated text to response events.

`Conversations.prepare` renders the prompt, chooses the dialect, and combines tools, tool choice and output format
into one constraint. `ResponseReader` (one per choice) turns the runner's events into chat events.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any, Final, Literal

import msgspec

from engine.chat.openai_forward import forward
from engine.chat.query import ChatQuery, check_tools
from engine.chat.reasoning import Markers, open_markers
from engine.chat.schemas import closed, shape, tidy
from engine.chat.structured import (
    ConstraintChecker,
    ConstraintImpossible,
    after_reasoning,
    check_parameters,
    of_schema,
)
from engine.chat.template import TemplateRenderer
from engine.chat.template_messages import results_in_call_order, unread_notes, without_old_images
from engine.chat.tools.call_events import FurtherCalls
from engine.chat.tools.dialect import Dialect
from engine.chat.tools.dialects import choose
from engine.chat.tools.grammar import ToolGrammar, embedded, tool_grammar
from engine.chat.tools.parser import AnswerParser
from engine.chat.types import (
    AnswerEvent,
    CallArguments,
    CallEnded,
    CallMalformed,
    CallStarted,
    ChatTemplate,
    Message,
    NamedTool,
    ReasoningDelta,
    Rendered,
    TextDelta,
    ToolDefinition,
)
from engine.core.request_timing import current_clock
from engine.core.sampling import NOTHING_RECOMMENDED, Chosen, Recommended, Source, refuse_impossible
from engine.core.sampling import choose as choose_sampling
from engine.core.types import (
    Constraint,
    Delta,
    Done,
    Event,
    GenerationRequest,
    Image,
    ModelFacts,
    PromptProgress,
    ReasoningBudget,
    Runaway,
    SamplingParams,
    Started,
    Timings,
    TokenLogprob,
    Usage,
)

FinishReason = Literal["stop", "length", "tool_calls", "cancelled", "error"]
_PARSED: Final = (TextDelta, ReasoningDelta, CallStarted, CallArguments, CallEnded, CallMalformed)
# The name of the built-in template in requests.
BUILT_IN: Final = "chatml"


class AnswerStarted(msgspec.Struct, frozen=True, kw_only=True):
    """Prompt processing has started."""

    prompt_tokens: int
    cached_tokens: int


class AnswerLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Log probabilities of tokens of the visible response; they come before their text."""

    entries: tuple[TokenLogprob, ...]


class AnswerFinished(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a response. `malformed` has unparsable tool calls: report them, never drop them.

    `notes` list changes to the conversation, and parts of the requested format that could not be enforced.
    """

    finish_reason: FinishReason
    usage: Usage
    timings: Timings
    stop: str | None = None
    malformed: tuple[str, ...] = ()
    runaway: Runaway | None = None
    notes: tuple[str, ...] = ()


ChatEvent = AnswerEvent | AnswerStarted | PromptProgress | AnswerLogprobs | AnswerFinished


class PreparedChat(msgspec.Struct, frozen=True, kw_only=True):
    """A request for the runner, and the data to read its response. `notes` list changes to the conversation."""

    request: GenerationRequest
    sampling: Chosen
    rendered: Rendered
    dialect: Dialect
    query: ChatQuery
    template: ChatTemplate = ChatTemplate()
    notes: tuple[str, ...] = ()

    def answer(self) -> "ResponseReader":
        return ResponseReader(self)


class Conversations:
    """Prepares chats. One instance per server; safe for concurrent requests."""

    def __init__(self, renderer: TemplateRenderer, checker: ConstraintChecker) -> None:
        self.renderer = renderer
        self.checker = checker

    async def prepare(
        self, facts: ModelFacts, query: ChatQuery, recommended: Recommended = NOTHING_RECOMMENDED
    ) -> PreparedChat:
        """Render the prompt, and decide sampling and the constraint of the response.

        Raises: InputFault: unknown tool choice, bad tool names, BadTemplate, ConstraintImpossible.
        """
        check_tools(query)
        refuse_impossible(facts, sum(len(m.text()) for m in query.messages))
        clock = current_clock()
        if clock is not None:
            clock.results += [m.tool_call_id for m in query.messages if m.tool_call_id]
        unread = unread_notes(query.messages)
        if facts.forwards:
            return _forwarded(query, facts.forwards, unread)
        messages: Sequence[Message] = results_in_call_order(query.messages)
        if "vision" not in facts.capabilities:
            messages, unseen = without_old_images(messages)
            unread += unseen
        source = template_source(facts, query)
        template = ChatTemplate(source=source, bos=facts.bos, eos=facts.eos)
        dialect = choose(source)
        shown = () if query.tool_choice == "none" else query.tools
        rendered = await self.renderer.render(
            template,
            messages,
            shown,
            add_generation_prompt=query.add_generation_prompt,
            continue_final=query.continue_final,
            variables=template_variables(query),
            by_client=query.template is not None,
        )
        constraint, loosened = await self._constraint(query, dialect, rendered, source or "")
        # The parser needs control tokens as text if they can mark calls, channels or reasoning.
        special = bool(query.tools) or dialect.headers is not None
        special = special or marks_of(dialect, rendered, source or "") is not None
        special = special or open_markers(rendered.prefill, dialect.reasoning) is not None
        budget = budget_of(query, dialect, rendered, source or "", formed=constraint is not None)
        chosen = choose_sampling(query.sampling, recommended.layers(thinks(query)), query.sampling_source)
        request = GenerationRequest(
            prompt=rendered.prompt,
            add_special=rendered.add_special,
            max_tokens=query.max_tokens,
            stop=query.stop,
            sampling=chosen.params,
            logprobs=query.logprobs,
            constraint=constraint,
            priority=query.priority,
            images=tuple(Image(data=image.data) for image in rendered.images),
            keep_special=special,
            ignore_eos=query.ignore_eos,
            min_tokens=query.min_tokens,
            stop_token_ids=query.stop_token_ids,
            reasoning=budget,
            speculate=query.speculate,
            context_shift=query.context_shift,
            loop_guard=query.loop_guard,
            deterministic=query.deterministic,
            lora=query.lora,
        )
        notes = (*unread, *rendered.repairs, *notes_of(query, budget, source or ""), *loosened)
        return PreparedChat(
            request=request,
            sampling=chosen,
            rendered=rendered,
            dialect=dialect,
            query=query,
            template=template,
            notes=notes,
        )

    async def _constraint(
        self, query: ChatQuery, dialect: Dialect, rendered: Rendered, source: str
    ) -> tuple[Constraint | None, tuple[str, ...]]:
        """One constraint for calls and output format, None if the response is free; and what is not enforced."""
        output: Constraint | None = None
        notes: tuple[str, ...] = ()
        if query.output is not None:
            output, notes = await self.checker.fit(query.output, query.output_param)
        choice = query.tool_choice
        marks = marks_of(dialect, rendered, source)
        if isinstance(choice, NamedTool) or choice == "required":
            called = tuple(t for t in query.tools if not isinstance(choice, NamedTool) or t.name == choice.name)
            parallel = query.parallel_tool_calls and not isinstance(choice, NamedTool)
            checked, notes = await self._calls(
                called,
                lambda tools: _lark(tool_grammar(dialect, tools, parallel=parallel).whole),
                query.tools_param,
            )
            if dialect.call_preamble is not None:
                return msgspec.structs.replace(checked, preamble=dialect.call_preamble), notes
            return after_reasoning(checked, marks, rendered.prefill), notes
        offered = query.tools if choice == "auto" else ()
        if output is None:
            return await self._once_called(query, dialect, rendered, offered)
        if dialect.speaks_in(rendered.prefill):
            return output, notes
        if dialect.content_opening:
            # The format applies from the start of the visible text; calls before that are free.
            opening = ("", dialect.content_opening)
            return msgspec.structs.replace(output, preamble=opening, preamble_open=True), notes
        if offered:
            form = _schema_of(output, query.output_param)
            output, more = await self._calls(
                offered,
                lambda tools: _format_or_call(
                    tool_grammar(dialect, tools, parallel=query.parallel_tool_calls), form
                ),
                query.output_param,
            )
            notes += more
        return after_reasoning(output, marks, rendered.prefill), notes

    async def _once_called(
        self, query: ChatQuery, dialect: Dialect, rendered: Rendered, offered: tuple[ToolDefinition, ...]
    ) -> tuple[Constraint | None, tuple[str, ...]]:
        """The constraint of strict tools, which starts when a call does; reasoning does not trigger it."""
        parallel = query.parallel_tool_calls
        strict = any(tool.strict for tool in offered)
        opening = tool_grammar(dialect, offered, parallel=parallel).opening if strict else ""
        if not opening:
            return None, ()
        checked, notes = await self._calls(
            offered,
            lambda tools: _lark(tool_grammar(dialect, tools, parallel=parallel).continuation, opening),
            query.tools_param,
        )
        if dialect.headers is not None and dialect.call_preamble is not None:
            block = (dialect.call_preamble[0], dialect.headers.body_ends[0])
            return msgspec.structs.replace(checked, preamble=block), notes
        return after_reasoning(checked, dialect.reasoning, rendered.prefill), notes

    async def _calls(
        self,
        tools: tuple[ToolDefinition, ...],
        grammar: Callable[[Sequence[ToolDefinition]], Constraint],
        param: str,
    ) -> tuple[Constraint, tuple[str, ...]]:
        """The constraint for calls of these tools, and the parts of their schemas that are not enforced.

        Raises: ConstraintImpossible: a strict tool cannot be enforced as a whole.
        """
        for tool in tools:
            check_parameters(tool.parameters, param)
        plain = tuple(_tidied(tool) for tool in tools)
        try:
            return await self.checker.check(grammar(plain), param), ()
        except ConstraintImpossible:
            pass  # one of the schemas failed; find out which below
        fitted = [await self._fitted(tool, param) for tool in plain]
        notes = tuple(note for _, of_tool in fitted for note in of_tool)
        try:
            return await self.checker.check(grammar([tool for tool, _ in fitted]), param), notes
        except ConstraintImpossible:
            if all(tool.strict for tool in tools):
                raise
        # Together they are too large, or use features that are allowed only in a complete schema.
        callable_tools = [tool if tool.strict else _only_named(tool) for tool, _ in fitted]
        notes = tuple(
            f"{param}: tool {tool.name!r}: only the names of the arguments are enforced"
            for tool in tools
            if not tool.strict
        )
        return await self.checker.check(grammar(callable_tools), param), notes

    async def _fitted(self, tool: ToolDefinition, param: str) -> tuple[ToolDefinition, tuple[str, ...]]:
        where = f"{param}: tool {tool.name!r}"
        try:
            form, notes = await self.checker.fit(of_schema(tool.parameters, where, strict=tool.strict), where)
        except ConstraintImpossible as refusal:
            if tool.strict:
                raise ConstraintImpossible(f"strict tool {tool.name!r}: {refusal.reason}", param) from None
            return _only_named(tool), (f"{where}: only the names of its arguments are enforced ({refusal.reason})",)
        parameters = json.loads(form.source)
        return msgspec.structs.replace(tool, parameters=parameters if isinstance(parameters, dict) else {}), notes


def _tidied(tool: ToolDefinition) -> ToolDefinition:
    """The tool with its arguments in an enforceable form, restricted to the named ones."""
    schema = closed(tidy(tool.parameters))
    if isinstance(schema, dict) and schema.get("properties") == {} and schema.keys() <= {"type", "properties"}:
        schema["additionalProperties"] = False  # a function without parameters is called without arguments
    return msgspec.structs.replace(tool, parameters=schema) if isinstance(schema, dict) else tool


def _only_named(tool: ToolDefinition) -> ToolDefinition:
    return msgspec.structs.replace(tool, parameters=shape(tool.parameters))


def _lark(source: str, trigger: str | None = None) -> Constraint:
    return Constraint(kind="lark", source=source, trigger=trigger)


def _schema_of(output: Constraint, param: str) -> dict[str, Any]:
    """The JSON schema of an output format. Raises: ConstraintImpossible: the output is not JSON."""
    if output.kind not in {"json_schema", "json_object"}:
        raise ConstraintImpossible("with tools, only JSON can be required", param)
    schema = json.loads(output.source) if output.kind == "json_schema" else {"type": "object"}
    return schema if isinstance(schema, dict) else {}


def _format_or_call(grammar: ToolGrammar, form: dict[str, Any]) -> Constraint:
    """A constraint that allows either the output format or a call."""
    lines = grammar.whole.split("\n")
    either = lines[0].replace("start:", "start: output |", 1)
    return _lark("\n".join([either, f"output: %json {embedded(form)}", *lines[1:]]))


def _forwarded(query: ChatQuery, flavour: str, unread: tuple[str, ...]) -> PreparedChat:
    """A chat that another server renders and parses; that server chooses sampling values that are not set."""
    request, notes = forward(query, flavour)
    sources: dict[str, Source] = dict.fromkeys(query.sampling, query.sampling_source)
    return PreparedChat(
        request=request,
        sampling=Chosen(params=SamplingParams(**query.sampling), sources=sources),
        rendered=Rendered(prompt="", prefill="", add_special=False),
        dialect=choose(None),
        query=query,
        notes=(*unread, *notes),
    )


def end_notes(done: Done) -> tuple[str, ...]:
    """Notes from the end of a generation: on the model, and on the format."""
    if done.unfinished is None:
        return done.notes
    return (
        *done.notes,
        f"the output format could not be enforced to the end, so the answer stops early: {done.unfinished}",
    )


def ends_with_partial_answer(messages: Sequence[Message]) -> bool:
    """Whether the conversation ends with the start of a response, which is to be continued."""
    last = messages[-1] if messages else None
    return last is not None and last.role == "assistant" and not last.tool_calls and bool(last.text())


def template_source(facts: ModelFacts, query: ChatQuery) -> str | None:
    """The request's template or the model's; a file may have a separate one for conversations with tools."""
    if query.template is not None:
        return None if query.template == BUILT_IN else query.template
    if query.tools:
        own = facts.metadata.get("tokenizer.chat_template.tool_use")
        if own:
            return own
    return facts.chat_template or None


def thinks(query: ChatQuery) -> bool | None:
    """Whether the request switches reasoning on or off; None leaves it to the model."""
    variables = template_variables(query)
    switch = variables.get("enable_thinking", variables.get("thinking"))
    return switch if isinstance(switch, bool) else None


class ResponseReader:
    """Reads one response. `feed` every event of the runner, in order; `done` requests the end of generation."""

    def __init__(self, chat: PreparedChat) -> None:
        query = chat.query
        self._notes = chat.notes
        self._parser = AnswerParser(chat.dialect, query.tools, chat.rendered.prefill)
        self._no_calls = query.tool_choice == "none"
        self._one_call = not query.parallel_tool_calls
        self._further = FurtherCalls() if query.tool_choice == "required" else None
        self._malformed: list[str] = []
        self._num_calls = 0
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._completion_tokens = 0
        self._reasoning_tokens = 0
        self._refused: dict[int, list[str]] = {}
        self.done = False

    def feed(self, event: "Event | AnswerEvent | AnswerLogprobs") -> list[ChatEvent]:
        """Chat events that this runner event makes certain. Events parsed by another server pass unchanged."""
        if isinstance(event, Delta):  # first, because there is one for every token
            self._completion_tokens += len(event.token_ids)
            was_speaking, reasoned = self._parser.speaking, self._parser.reasoning
            events = self._pass(self._parser.feed(event.text))
            if reasoned or self._parser.reasoning:  # the marks around it are part of it
                self._reasoning_tokens += len(event.token_ids)
            if event.logprobs and (was_speaking or self._parser.speaking):
                return [AnswerLogprobs(entries=event.logprobs), *events]
            return events
        if isinstance(event, _PARSED):
            return [event] if isinstance(event, TextDelta) and not self.done else self._pass([event])
        if isinstance(event, Started):
            self._prompt_tokens, self._cached_tokens = event.prompt_tokens, event.cached_tokens
            return [AnswerStarted(prompt_tokens=event.prompt_tokens, cached_tokens=event.cached_tokens)]
        if isinstance(event, PromptProgress | AnswerLogprobs):
            return [event]
        cut = event.finish_reason != "stop"
        events = self._pass(self._parser.finish(cut=cut, ended=event.stop is None))
        if self._further is not None and self._further.held:
            self._notes += ("a further tool call was cut by the limit and left out",)
        return [*events, self._finished(event)]

    def stopped_early(self) -> AnswerFinished:
        """The end of a response whose generation was stopped because it was `done`."""
        usage = Usage(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            cached_tokens=self._cached_tokens,
            reasoning_tokens=self._reasoning_tokens,
        )
        return AnswerFinished(
            finish_reason="tool_calls",
            usage=usage,
            timings=Timings(),
            malformed=tuple(self._malformed),
            notes=self._notes,
        )

    def _finished(self, done: Done) -> AnswerFinished:
        reason: FinishReason = done.finish_reason
        usage = done.usage
        if self._reasoning_tokens:  # another server counts its own
            usage = msgspec.structs.replace(usage, reasoning_tokens=self._reasoning_tokens)
        if reason == "stop" and self._num_calls:
            reason = "tool_calls"
        return AnswerFinished(
            finish_reason=reason,
            usage=usage,
            timings=done.timings,
            stop=done.stop,
            malformed=tuple(self._malformed),
            runaway=done.runaway,
            notes=(*self._notes, *end_notes(done)),
        )

    def _pass(self, events: list[AnswerEvent]) -> list[ChatEvent]:
        out: list[ChatEvent] = []
        for event in events:
            if self.done:
                break
            if self._further is not None and isinstance(event, (CallStarted, CallArguments, CallEnded)):
                whole = self._further.feed(event, first=self._num_calls == 0)
                if whole is None:
                    self.done = True
                    self._notes += ("the model repeated a tool call, so the answer stops",)
                    break
                out += self._called(whole)
            elif isinstance(event, CallMalformed):
                self._malformed.append(event.text)
            elif self._no_calls and isinstance(event, (CallStarted, CallArguments, CallEnded)):
                self._refuse(event)
            else:
                out += self._called([event])
        return out

    def _called(self, events: list[AnswerEvent]) -> list[ChatEvent]:
        """Count the calls among these events and return the events to pass on."""
        out: list[ChatEvent] = []
        for event in events:
            if isinstance(event, CallEnded):
                self._num_calls += 1
                self.done = self._one_call
            elif isinstance(event, CallStarted) and (clock := current_clock()) is not None:
                clock.called.append(event.id)
            if not isinstance(event, CallMalformed):
                out.append(event)
        return out

    def _refuse(self, event: CallStarted | CallArguments | CallEnded) -> None:
        """Collect a call that the client did not allow; it is reported at the end."""
        if isinstance(event, CallStarted):
            self._refused[event.index] = [event.name]
        elif isinstance(event, CallArguments):
            self._refused[event.index].append(event.delta)
        else:
            self._malformed.append("".join(self._refused.pop(event.index)))


async def read(answer: ResponseReader, events: AsyncIterator[Event]) -> AsyncGenerator[ChatEvent, None]:
    """Stream the whole response; closes the runner's stream, which cancels it, as soon as the response is done."""
    try:
        async for event in events:
            for chat_event in answer.feed(event):
                yield chat_event
            if answer.done and not isinstance(event, Done):
                yield answer.stopped_early()
                return
    finally:
        if isinstance(events, AsyncGenerator):
            await events.aclose()


# Reasoning effort: the variables of the template, and a token budget that the runner enforces.

# Values of `reasoning_effort` that disable reasoning.
_NO_EFFORT: Final = frozenset({"none", "minimal", "off"})
# Reasoning budget in tokens if the template has no such variable. Source: low is the smallest budget in Anthropic's
# API, medium four times that; higher effort is left to the model.
LEVELS: Final = {"low": 1024, "medium": 4096}
_SWITCHES: Final = ("enable_thinking", "thinking", "reasoning_effort")


def marks_of(dialect: Dialect, rendered: Rendered, source: str) -> Markers | None:
    """The dialect's reasoning markers, if this model is likely to use them."""
    marks = dialect.reasoning
    if marks is not None and (rendered.traits.reasoning or marks.end in source):
        return marks
    return None


def template_variables(query: ChatQuery) -> dict[str, Any]:
    """The template's variables for reasoning; those of the client take precedence."""
    variables: dict[str, Any] = {}
    thinking = query.thinking
    if query.reasoning_effort is not None:
        variables["reasoning_effort"] = query.reasoning_effort
        if thinking is None and query.reasoning_effort in _NO_EFFORT:
            thinking = False
    if query.reasoning_budget is not None:
        variables["thinking_budget"] = query.reasoning_budget
        if thinking is None and query.reasoning_budget == 0:
            thinking = False
    if thinking is not None:
        variables |= {"enable_thinking": thinking, "thinking": thinking}
    return variables | query.template_variables


def budget_of(
    query: ChatQuery, dialect: Dialect, rendered: Rendered, source: str, *, formed: bool
) -> ReasoningBudget | None:
    """The limit of a request's reasoning with this family's own markers; None if there is no limit.

    `formed`: a constraint starts directly after the closing marker, so no other text may follow the marker.
    """
    tokens = _tokens(query, source)
    if tokens is None:
        return None
    opened = open_markers(rendered.prefill, dialect.reasoning)
    marks = opened or marks_of(dialect, rendered, source)
    if marks is not None:
        # Families with their own tags put the response into the next paragraph.
        close = f"\n{marks.end}\n\n" if marks.end.startswith("</") else marks.end
        close = close.rstrip() if formed else close
        is_open = opened is not None
        return ReasoningBudget(tokens=tokens, start=marks.start, end=marks.end, close=close, is_open=is_open)
    if dialect.headers is not None and dialect.call_preamble is not None:
        start, next_message = dialect.call_preamble
        return ReasoningBudget(
            tokens=tokens,
            start=start,
            end=dialect.headers.body_ends[0],
            close=next_message + dialect.content_opening,
            is_open=dialect.reasons_in(rendered.prefill),
        )
    return None


def _tokens(query: ChatQuery, source: str) -> int | None:
    if query.reasoning_budget is not None:
        return query.reasoning_budget
    if query.thinking is False or query.reasoning_effort is None or "reasoning_effort" in source:
        return None
    return LEVELS.get(query.reasoning_effort)


def notes_of(query: ChatQuery, budget: ReasoningBudget | None, source: str) -> tuple[str, ...]:
    """Notes on the request's template and reasoning options that had no effect."""
    notes = [
        f"the template reads no variable {name!r}: it had no effect"
        for name in query.template_variables
        if name not in source
    ]
    if query.reasoning_budget is not None and budget is None:
        notes.append("this model marks no reasoning that could be bounded: the budget had no effect")
    is_requested = query.thinking is not None or query.reasoning_effort is not None
    if is_requested and budget is None and not any(name in source for name in _SWITCHES):
        notes.append("the template has no switch for reasoning: the request's setting had no effect")
    return tuple(notes)
