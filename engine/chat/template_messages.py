"""Converts messages to the dictionaries that a template expects, as in transformers, adapted to its traits."""

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from engine.chat.builtin import MEDIA_MARKER, tool_prompt
from engine.chat.tools.call_rendering import spell
from engine.chat.tools.dialect import Dialect
from engine.chat.types import ImagePart, Message, TemplateTraits, TextPart, ToolCall, ToolDefinition

Dict = dict[str, Any]
_NO_VARIABLES: Final[Mapping[str, Any]] = {}
# Fields of a user message's part that TranslateGemma's template reads, with llama.cpp's values if they are missing.
LANGUAGES: Final = {"source_lang_code": "en-GB", "target_lang_code": "en-GB"}
# Replaces an image for a text-only model.
_UNSEEN: Final = "[image that this model cannot see]"


def flatten(content: str | tuple[Any, ...]) -> str:
    """The content as one text, with a media marker in place of each image and a line break between other parts.

    Source: llama.cpp, common/chat.cpp, `to_json_oaicompat`.
    """
    if isinstance(content, str):
        return content
    text, is_after_text = "", False
    for part in content:
        is_text = isinstance(part, TextPart)
        text += ("\n" if is_text and is_after_text and text else "") + (part.text if is_text else MEDIA_MARKER)
        is_after_text = is_text
    return text


def with_fields(part: dict[str, Any], text: str) -> TextPart:
    """A text part with its further members, if these are texts, such as the languages of a translation."""
    own = {"type", "text", "refusal", "id"}
    return TextPart(text=text, fields={k: v for k, v in part.items() if k not in own and isinstance(v, str)})


def joined_text(parts: Sequence[Any]) -> str | None:
    """The parts as one text; None if there is an image or a part with further members."""
    if not all(isinstance(part, TextPart) and not part.fields and not part.replaces for part in parts):
        return None
    return flatten(tuple(parts))


def images(messages: Sequence[Message]) -> tuple[ImagePart, ...]:
    """All images, in order."""
    return tuple(
        part
        for message in messages
        if not isinstance(message.content, str)
        for part in message.content
        if isinstance(part, ImagePart)
    )


def last_answer(roles: Sequence[object]) -> int:
    """Position of the last response before the last message; -1 if there is none."""
    return max((index for index, role in enumerate(roles[:-1]) if role == "assistant"), default=-1)


def unread_notes(messages: Sequence[Message]) -> tuple[str, ...]:
    """A note that names the parts that could not be read."""
    contents = (message.content for message in messages if not isinstance(message.content, str))
    params = [part.replaces for content in contents for part in content if isinstance(part, TextPart)]
    names = ", ".join(filter(None, params))
    return (f"parts of earlier messages that cannot be read here were left out: {names}",) if names else ()


def without_old_images(messages: Sequence[Message]) -> tuple[tuple[Message, ...], tuple[str, ...]]:
    """The messages with text in place of images of tools and earlier messages, and a note if there was one.

    A client that repeats the conversation could never remove such an image, for instance if the model changes.
    """
    answered = last_answer([message.role for message in messages])
    changed = tuple(
        _without_images(message) if message.role == "tool" or index < answered else message
        for index, message in enumerate(messages)
    )
    if changed == tuple(messages):
        return changed, ()
    return changed, ("this model reads text only: images of tools and of earlier messages were left out",)


def _without_images(message: Message) -> Message:
    if isinstance(message.content, str) or not any(isinstance(part, ImagePart) for part in message.content):
        return message
    texts = (part.text if isinstance(part, TextPart) else _UNSEEN for part in message.content)
    return msgspec.structs.replace(message, content="\n".join(texts))


def _arguments(call: ToolCall, traits: TemplateTraits) -> Any:
    """The arguments as an object if the template needs one and they are one; otherwise the text."""
    if traits.arguments_as_text:
        return call.arguments
    try:
        value = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return {"arguments": call.arguments}
    return value if isinstance(value, dict) else {"arguments": value}


def describe_tools(
    messages: Sequence[Message], tools: tuple[ToolDefinition, ...], dialect: Dialect
) -> list[Message]:
    """Add the tools to the system message, for a template that does not support tools."""
    prompt = tool_prompt(tools, dialect)
    if messages and messages[0].role in {"system", "developer"}:
        system = f"{flatten(messages[0].content)}\n\n{prompt}"
        return [Message(role="system", content=system), *messages[1:]]
    return [Message(role="system", content=prompt), *messages]


def spell_calls(messages: Sequence[Message], dialect: Dialect) -> list[Message]:
    """Write calls as text of the response, for a template that does not write them."""
    return [
        msgspec.structs.replace(
            message,
            content="\n".join(filter(None, (flatten(message.content), spell(dialect, message.tool_calls)))),
            tool_calls=(),
        )
        if message.tool_calls
        else message
        for message in messages
    ]


def spell_results(messages: Sequence[Message]) -> list[Message]:
    """Write results as user text, for a template without a tool role."""
    out: list[Message] = []
    texts: list[str] = []  # of the results so far, joined at once: there may be thousands

    def flush() -> None:
        if texts:
            out.append(Message(role="user", content="\n".join(texts)))
            texts.clear()

    for message in messages:
        if message.role != "tool":
            flush()
            out.append(message)
            continue
        if not texts and out and out[-1].role == "user" and out[-1].text().startswith("<tool_response>"):
            texts.append(out.pop().text())
        texts.append(f"<tool_response>\n{flatten(message.content)}\n</tool_response>")
    flush()
    return out


def results_in_call_order(messages: Sequence[Message]) -> list[Message]:
    """Sort the results of parallel calls by their calls: many templates show no ids, so the order must tell."""
    out = list(messages)
    for index, message in enumerate(messages):
        if len(message.tool_calls) < 2:
            continue
        position = {call.id: number for number, call in enumerate(message.tool_calls)}
        end = next((i for i in range(index + 1, len(out)) if out[i].role != "tool"), len(out))
        out[index + 1 : end] = sorted(
            out[index + 1 : end], key=lambda result: position.get(result.tool_call_id or "", len(position))
        )
    return out


def one_call_a_turn(messages: Sequence[Message]) -> list[Message]:
    """Write parallel calls as sequential calls, each followed by its result."""
    results = {m.tool_call_id: m for m in messages if m.role == "tool"}
    out: list[Message] = []
    moved: set[str | None] = set()
    for message in messages:
        if len(message.tool_calls) < 2:
            if message.role != "tool" or message.tool_call_id not in moved:
                out.append(message)
            continue
        turn = message
        for call in message.tool_calls:
            out.append(msgspec.structs.replace(turn, tool_calls=(call,)))
            turn = Message(role="assistant")
            if call.id in results:
                out.append(results[call.id])
                moved.add(call.id)
    return out


def answer_results(messages: Sequence[Message]) -> list[Message]:
    """Add a response after each tool result that a user message follows, for roles that must alternate."""
    out: list[Message] = []
    for message in messages:
        if message.role == "user" and out and out[-1].role == "tool":
            out.append(Message(role="assistant", content="OK."))
        out.append(message)
    return out


def adapt_call_ids(messages: Sequence[Message], source: str) -> list[Message]:
    """Call ids in the template's format: Kimi reads the name from them, Mistral requires nine characters."""
    indexed = "<|tool_calls_section_begin|>" in source
    nine = "length != 9" in source or "length == 9" in source
    if not indexed and not nine:
        return list(messages)
    renamed: dict[str | None, str] = {}

    def renew(call: ToolCall) -> ToolCall:
        count = len(renamed)
        new_id = f"functions.{call.name}:{count}" if indexed else nine_characters(call.id)
        renamed[call.id] = new_id
        return msgspec.structs.replace(call, id=new_id)

    def adapted(message: Message) -> Message:
        if message.tool_calls:
            return msgspec.structs.replace(message, tool_calls=tuple(map(renew, message.tool_calls)))
        answered = message.tool_call_id
        if answered in renamed:
            return msgspec.structs.replace(message, tool_call_id=renamed[answered])
        if answered and nine:
            return msgspec.structs.replace(message, tool_call_id=nine_characters(answered))
        return message

    return [adapted(message) for message in messages]


def nine_characters(call_id: str) -> str:
    """The call id if it has nine letters and digits, otherwise nine characters derived from it."""
    if len(call_id) == 9 and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:9]


def hoist_system(messages: Sequence[Message]) -> list[Message]:
    """Join all system and developer messages into one at the start, for templates that need it there."""
    system = [flatten(m.content) for m in messages if m.role in {"system", "developer"}]
    others = [m for m in messages if m.role not in {"system", "developer"}]
    return [Message(role="system", content="\n\n".join(system)), *others] if system else others


def fold_system(messages: Sequence[Message]) -> list[Message]:
    """Put the system text before the first user message, for templates without a system role."""
    hoisted = hoist_system(messages)
    if not hoisted or hoisted[0].role != "system":
        return hoisted
    system, others = hoisted[0], hoisted[1:]
    for index, message in enumerate(others):
        if message.role == "user":
            others[index] = _prefixed(message, f"{flatten(system.content)}\n\n")
            return others
    return [Message(role="user", content=system.content), *others]


def _prefixed(message: Message, prefix: str) -> Message:
    if isinstance(message.content, str):
        return msgspec.structs.replace(message, content=prefix + message.content)
    first, *more = message.content
    if isinstance(first, ImagePart):
        return msgspec.structs.replace(message, content=prefix + flatten(message.content))
    return msgspec.structs.replace(
        message, content=(msgspec.structs.replace(first, text=prefix + first.text), *more)
    )


def merge_turns(messages: Sequence[Message]) -> list[Message]:
    """Join adjacent messages of one role, for templates that require alternation."""
    turns: list[list[Message]] = []
    for message in messages:
        if turns and turns[-1][0].role == message.role and message.role in {"user", "assistant"}:
            turns[-1].append(message)
        else:
            turns.append([message])
    return [_merged(turn) for turn in turns]


def _merged(turn: Sequence[Message]) -> Message:
    if len(turn) == 1:
        return turn[0]
    text = "\n\n".join(filter(None, (flatten(message.content) for message in turn)))
    calls = tuple(call for message in turn for call in message.tool_calls)
    return msgspec.structs.replace(turn[0], content=text, tool_calls=calls)


def translates(source: str) -> bool:
    """Whether a template reads the languages of a translation from the parts of a question."""
    return all(name in source for name in LANGUAGES)


def names_no_language(messages: Sequence[Message], source: str, variables: Mapping[str, Any]) -> bool:
    """Whether the template needs languages and neither the parts nor the template's variables name one."""
    parts = [part for m in messages if not isinstance(m.content, str) for part in m.content]
    fields_of_parts = [set(variables), *(part.fields for part in parts if isinstance(part, TextPart))]
    return translates(source) and not any(name in fields for name in LANGUAGES for fields in fields_of_parts)


def _typed(content: str | tuple[Any, ...], source: str, variables: Mapping[str, Any]) -> list[Dict]:
    """The content as a list of parts, with the members that the template reads."""
    languages = {}
    if translates(source):
        languages = LANGUAGES | {name: str(variables[name]) for name in LANGUAGES if name in variables}
    if isinstance(content, str) or not any(isinstance(part, TextPart) and part.fields for part in content):
        return [{"type": "text", "text": flatten(content), **languages}]
    fields = [part.fields if isinstance(part, TextPart) else {} for part in content]
    read = [{name: value for name, value in more.items() if name in source} for more in fields]
    return [
        {"type": "text", "text": flatten((part,)), **languages, **more}
        for part, more in zip(content, read, strict=True)
    ]


def as_dicts(
    messages: Sequence[Message], traits: TemplateTraits, source: str, variables: Mapping[str, Any] = _NO_VARIABLES
) -> list[Dict]:
    """Messages as a template's variable `messages`.

    Assistant messages have their reasoning under each name that templates read (`reasoning_content` is
    the common one); a call's id, name and arguments are where OpenAI puts them.
    """
    out: list[Dict] = []
    names = {call.id: call.name for m in adapt_call_ids(messages, source) for call in m.tool_calls}
    thinking_blocks = "'thinking'" in source and "block['type']" in source
    harmony = "<|channel|>" in source and "message.thinking" in source
    for message in adapt_call_ids(messages, source):
        role = message.role
        if role == "developer" and "developer" not in source:
            role = "system"
        text = flatten(message.content)
        item: Dict = {"role": role, "content": text}
        if traits.typed_content and (role == "user" or not translates(source)):
            item["content"] = _typed(message.content, source, variables)
        if message.reasoning:
            item["reasoning_content"] = message.reasoning
            item["reasoning"] = message.reasoning
            item["thinking"] = message.reasoning
            if thinking_blocks:
                blocks = [{"type": "thinking", "thinking": message.reasoning}]
                item["content"] = [*blocks, {"type": "text", "text": text}] if text else blocks
            if harmony and message.tool_calls and text:
                item["thinking"], item["content"] = f"{message.reasoning}\n\n{text}", ""
        if message.tool_calls:
            item["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": _arguments(call, traits)},
                }
                for call in message.tool_calls
            ]
        if message.role == "tool":
            item["tool_call_id"] = message.tool_call_id or ""
            item["name"] = message.name or names.get(message.tool_call_id or "", "")
        elif message.name:
            item["name"] = message.name
        out.append(item)
    inside = any(access in source for access in ("['tool_responses']", ".tool_responses", "get('tool_responses')"))
    return _responses_inside(out) if inside and "OpenAI Chat Completions" not in source else out


def _responses_inside(messages: list[Dict]) -> list[Dict]:
    """Put results into the calling assistant's message, as Gemma 4's first templates read them."""
    out: list[Dict] = []
    for item in messages:
        if item["role"] == "tool" and out and out[-1]["role"] == "assistant":
            response = item["content"]
            with contextlib.suppress(ValueError, TypeError, RecursionError):
                parsed = json.loads(response)
                response = parsed if isinstance(parsed, dict) else response
            entry = {"name": item.get("name", ""), "response": response}
            out[-1].setdefault("tool_responses", []).append(entry)
        else:
            out.append(item)
    return out
