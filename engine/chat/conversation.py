"""From a protocol's request to a prompt and from generated text to an answer's events: one road for all protocols.

`Conversations.prepare` renders the prompt, chooses the dialect, and turns tools, tool choice and output format
into one constraint. `Answer` (one for each choice) turns the runner's events into chat events.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Final, Literal

import msgspec

from engine.chat.effort import budget_of, marks_of, notes_of, template_variables
from engine.chat.events import (
    AnswerEvent,
    CallArguments,
    CallEnded,
    CallMalformed,
    CallStarted,
    ReasoningDelta,
    TextDelta,
)
from engine.chat.forwarded import forward
from engine.chat.query import ChatQuery
from engine.chat.reasoning import open_markers
from engine.chat.structured import ConstraintChecker, ConstraintImpossible, after_reasoning
from engine.chat.template import TemplateRenderer
from engine.chat.tools.checks import check_tools
from engine.chat.tools.dialect import Dialect
from engine.chat.tools.dialects import choose
from engine.chat.tools.grammar import tool_grammar
from engine.chat.tools.parser import AnswerParser
from engine.chat.types import ChatTemplate, Message, NamedTool, Rendered, ToolDefinition
from engine.prompt_bounds import refuse_impossible
from engine.sampling import NOTHING_RECOMMENDED, Chosen, Recommended, Source
from engine.sampling import choose as choose_sampling
from engine.time_spent import current_clock
from engine.types import (
    Constraint,
    Delta,
    Done,
    Event,
    GenerationRequest,
    Image,
    ModelFacts,
    PromptProgress,
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
    """The prompt is being worked on."""

    prompt_tokens: int
    cached_tokens: int


class AnswerLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Log probabilities of tokens of the visible answer; they come before the text they belong to."""

    entries: tuple[TokenLogprob, ...]


class AnswerFinished(msgspec.Struct, frozen=True, kw_only=True):
    """The end. `malformed` are attempts at calls that nothing could be made of: report them, never drop them."""

    finish_reason: FinishReason
    usage: Usage
    timings: Timings
    stop: str | None = None
    malformed: tuple[str, ...] = ()
    runaway: Runaway | None = None


ChatEvent = AnswerEvent | AnswerStarted | PromptProgress | AnswerLogprobs | AnswerFinished


class PreparedChat(msgspec.Struct, frozen=True, kw_only=True):
    """A request for the runner, and what its answer is read with. `notes` say what was changed on the way."""

    request: GenerationRequest
    sampling: Chosen
    rendered: Rendered
    dialect: Dialect
    query: ChatQuery
    template: ChatTemplate = ChatTemplate()
    notes: tuple[str, ...] = ()

    def answer(self) -> "Answer":
        """A reader for one choice."""
        return Answer(self)


class Conversations:
    """Prepares chats. One for each server; safe for many requests at once."""

    def __init__(self, renderer: TemplateRenderer, checker: ConstraintChecker) -> None:
        self.renderer = renderer
        self.checker = checker

    async def prepare(
        self, facts: ModelFacts, query: ChatQuery, recommended: Recommended = NOTHING_RECOMMENDED
    ) -> PreparedChat:
        """Render the prompt, settle how the answer is sampled and what it must look like.

        Raises: InputFault: unknown tool choice, bad tool names, BadTemplate, ConstraintImpossible.
        """
        check_tools(query)
        refuse_impossible(facts, sum(len(m.text()) for m in query.messages))
        clock = current_clock()
        if clock is not None:
            clock.results += [m.tool_call_id for m in query.messages if m.tool_call_id]
        if facts.forwards:
            return _forwarded(query, facts.forwards)
        source = template_source(facts, query)
        template = ChatTemplate(source=source, bos=facts.bos, eos=facts.eos)
        dialect = choose(source)
        shown = () if query.tool_choice == "none" else query.tools
        rendered = await self.renderer.render(
            template,
            query.messages,
            shown,
            continue_final=query.continue_final,
            variables=template_variables(query),
            brought=query.template is not None,
        )
        constraint = await self._constraint(query, dialect, rendered, source or "")
        # The parser needs control tokens as text where calls, channels or reasoning may be marked by them.
        special = bool(query.tools) or dialect.headers is not None
        special = special or marks_of(dialect, rendered, source or "") is not None
        special = special or open_markers(rendered.prefill, dialect.reasoning) is not None
        budget = budget_of(query, dialect, rendered, source or "", formed=constraint is not None)
        chosen = choose_sampling(query.sampling, recommended.layers(_thinks(query)), query.sampling_source)
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
        notes = (*rendered.repairs, *notes_of(query, budget, source or ""))
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
    ) -> Constraint | None:
        """One constraint for calls and output format together; None where the answer is free."""
        output = None if query.output is None else await self.checker.check(query.output, query.output_param)
        choice = query.tool_choice
        if isinstance(choice, NamedTool) or choice == "required":
            called = [t for t in query.tools if not isinstance(choice, NamedTool) or t.name == choice.name]
            parallel = query.parallel_tool_calls and not isinstance(choice, NamedTool)
            whole = Constraint(kind="lark", source=tool_grammar(dialect, called, parallel=parallel).whole)
            checked = await self.checker.check(whole, query.tools_param)
            if dialect.call_preamble is not None:
                return msgspec.structs.replace(checked, preamble=dialect.call_preamble)
            return after_reasoning(checked, marks_of(dialect, rendered, source), rendered.prefill)
        offered = query.tools if choice == "auto" else ()
        if output is not None:
            return await self._output(query, output, dialect, rendered, offered, source)
        if any(tool.strict for tool in offered):
            grammar = tool_grammar(dialect, offered, parallel=query.parallel_tool_calls)
            if grammar.opening:
                calls = Constraint(kind="lark", source=grammar.continuation, trigger=grammar.opening)
                checked = await self.checker.check(calls, query.tools_param)
                if dialect.headers is not None and dialect.call_preamble is not None:
                    block = (dialect.call_preamble[0], dialect.headers.body_ends[0])
                    return msgspec.structs.replace(checked, preamble=block)
                return after_reasoning(checked, dialect.reasoning, rendered.prefill)
        return None

    async def _output(
        self,
        query: ChatQuery,
        output: Constraint,
        dialect: Dialect,
        rendered: Rendered,
        offered: tuple[ToolDefinition, ...],
        source: str,
    ) -> Constraint:
        """The output format, or a call instead of it where tools are offered."""
        if dialect.content_opening:
            # The format begins where visible text begins; calls before that are free.
            return msgspec.structs.replace(output, preamble=("", dialect.content_opening), preamble_open=True)
        if offered:
            if output.kind not in {"json_schema", "json_object"}:
                raise ConstraintImpossible("beside tools only JSON can be required", query.output_param)
            schema = output.source if output.kind == "json_schema" else '{"type": "object"}'
            grammar = tool_grammar(dialect, offered, parallel=query.parallel_tool_calls)
            lines = grammar.whole.split("\n")
            either = lines[0].replace("start:", "start: output |", 1)
            source = "\n".join([either, f"output: %json {schema}", *lines[1:]])
            output = await self.checker.check(Constraint(kind="lark", source=source), query.output_param)
        return after_reasoning(output, marks_of(dialect, rendered, source), rendered.prefill)


def _forwarded(query: ChatQuery, flavour: str) -> PreparedChat:
    """A chat that another server renders and parses; how it is sampled is that server's choice where it is open."""
    request, notes = forward(query, flavour)
    given: dict[str, Source] = dict.fromkeys(query.sampling, query.sampling_source)
    return PreparedChat(
        request=request,
        sampling=Chosen(params=SamplingParams(**query.sampling), sources=given),
        rendered=Rendered(prompt="", prefill="", add_special=False),
        dialect=choose(None),
        query=query,
        notes=notes,
    )


def is_begun(messages: Sequence[Message]) -> bool:
    """The conversation ends with the beginning of the answer, which is to be continued."""
    last = messages[-1] if messages else None
    return last is not None and last.role == "assistant" and not last.tool_calls and bool(last.text())


def template_source(facts: ModelFacts, query: ChatQuery) -> str | None:
    """The request's template or the model's; a file may carry one of its own for conversations with tools."""
    if query.template is not None:
        return None if query.template == BUILT_IN else query.template
    if query.tools:
        own = facts.metadata.get("tokenizer.chat_template.tool_use")
        if own:
            return own
    return facts.chat_template or None


def _thinks(query: ChatQuery) -> bool | None:
    """Whether the request switches reasoning on or off; None: it leaves that to the model."""
    variables = template_variables(query)
    switch = variables.get("enable_thinking", variables.get("thinking"))
    return switch if isinstance(switch, bool) else None


class Answer:
    """Reads one answer. `feed` every event of the runner, in order; `done` asks to stop the generation."""

    def __init__(self, chat: PreparedChat) -> None:
        query = chat.query
        self._parser = AnswerParser(chat.dialect, query.tools, chat.rendered.prefill)
        self._no_calls = query.tool_choice == "none"
        self._one_call = not query.parallel_tool_calls
        self._malformed: list[str] = []
        self._num_calls = 0
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._completion_tokens = 0
        self._refused: dict[int, list[str]] = {}
        self.done = False

    def feed(self, event: "Event | AnswerEvent | AnswerLogprobs") -> list[ChatEvent]:
        """Chat events that this runner event makes certain; what another server parsed is taken as it is."""
        if isinstance(event, _PARSED):
            return [event] if isinstance(event, TextDelta) and not self.done else self._pass([event])
        if isinstance(event, Started):
            self._prompt_tokens, self._cached_tokens = event.prompt_tokens, event.cached_tokens
            return [AnswerStarted(prompt_tokens=event.prompt_tokens, cached_tokens=event.cached_tokens)]
        if isinstance(event, PromptProgress | AnswerLogprobs):
            return [event]
        if isinstance(event, Delta):
            self._completion_tokens += len(event.token_ids)
            spoken = self._parser.speaking
            events = self._pass(self._parser.feed(event.text))
            if event.logprobs and (spoken or self._parser.speaking):
                return [AnswerLogprobs(entries=event.logprobs), *events]
            return events
        cut = event.finish_reason != "stop"
        events = self._pass(self._parser.finish(cut=cut, ended=event.stop is None))
        return [*events, self._finished(event)]

    def stopped_early(self) -> AnswerFinished:
        """The end of an answer whose generation was stopped because it was `done`."""
        usage = Usage(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            cached_tokens=self._cached_tokens,
        )
        return AnswerFinished(
            finish_reason="tool_calls", usage=usage, timings=Timings(), malformed=tuple(self._malformed)
        )

    def _finished(self, done: Done) -> AnswerFinished:
        reason: FinishReason = done.finish_reason
        if reason == "stop" and self._num_calls:
            reason = "tool_calls"
        return AnswerFinished(
            finish_reason=reason,
            usage=done.usage,
            timings=done.timings,
            stop=done.stop,
            malformed=tuple(self._malformed),
            runaway=done.runaway,
        )

    def _pass(self, events: list[AnswerEvent]) -> list[ChatEvent]:
        out: list[ChatEvent] = []
        for event in events:
            if self.done:
                break
            if isinstance(event, CallMalformed):
                self._malformed.append(event.text)
            elif self._no_calls and isinstance(event, (CallStarted, CallArguments, CallEnded)):
                self._refuse(event)
            elif isinstance(event, CallEnded):
                self._num_calls += 1
                self.done = self._one_call
                out.append(event)
            else:
                if isinstance(event, CallStarted) and (clock := current_clock()) is not None:
                    clock.called.append(event.id)
                out.append(event)
        return out

    def _refuse(self, event: CallStarted | CallArguments | CallEnded) -> None:
        """A call although the client wanted none: told at the end."""
        if isinstance(event, CallStarted):
            self._refused[event.index] = [event.name]
        elif isinstance(event, CallArguments):
            self._refused[event.index].append(event.delta)
        else:
            self._malformed.append("".join(self._refused.pop(event.index)))


async def read(answer: Answer, events: AsyncIterator[Event]) -> AsyncGenerator[ChatEvent, None]:
    """The whole answer; leaves the runner's stream, which cancels it, as soon as the answer is done."""
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
