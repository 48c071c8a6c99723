"""Translates a chat completion request to `ChatQuery`: messages, tools, tool choice, output format, reasoning."""

import json
from functools import partial
from typing import Any, Final

import msgspec

from engine.chat import structured
from engine.chat.chat_pipeline import ends_with_partial_answer
from engine.chat.query import ChatQuery
from engine.chat.template_messages import joined_text, last_answer, with_fields
from engine.chat.types import Message, NamedTool, Part, ToolCall, ToolChoice, ToolDefinition
from engine.core.errors import InputFault
from engine.core.types import Constraint
from engine.placement.model_settings import NO_PRESET, Preset
from engine.server import custom_tools
from engine.server.file_parts import UnreadablePart, attached_text, decode_data_url, part_or_text
from engine.server.openai.schemas import ChatMessage, ChatRequest, OutputFields

# Parts of an assistant's content that are reasoning, by their type, which also names the field of the text.
_THOUGHTS: Final = ("thinking", "reasoning")
_GRAMMARS: Final = ("regex", "lark", "grammar", "gbnf")


def to_query(body: ChatRequest) -> ChatQuery:
    """Translate a request.

    Raises: InputFault: an invalid tool, choice or format; `param` names the field.
    """
    output, param = output_of(body)
    messages = to_messages(body.messages)
    defined = tuple(tool(entry, f"tools[{i}]") for i, entry in enumerate(body.tools or []))
    tools, allowed = allowed_tools(defined, body.tool_choice)
    choice = tool_choice(allowed)
    goes_on = (
        ends_with_partial_answer(messages) if body.continue_final_message is None else body.continue_final_message
    )
    return ChatQuery(
        messages=tuple(messages),
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        output=output,
        output_param=param,
        **body.options(),
        template=body.chat_template,
        continue_final=goes_on,
        template_variables=body.chat_template_kwargs or {},
        max_tokens=body.answer_limit,
        sampling=body.sampling(),
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        **body.common(),
    )


def with_preset(query: ChatQuery, preset: Preset) -> ChatQuery:
    """The query with the defaults of its model's name, for fields that the request does not set."""
    if preset == NO_PRESET:
        return query
    messages = query.messages
    if preset.system and all(message.role != "system" for message in messages):
        messages = (Message(role="system", content=preset.system), *messages)
    return msgspec.structs.replace(
        query,
        messages=messages,
        sampling={**preset.sampling, **query.sampling},
        max_tokens=preset.max_tokens if query.max_tokens is None else query.max_tokens,
        stop=query.stop or preset.stop,
    )


def to_messages(messages: list[ChatMessage]) -> list[Message]:
    """Translate the messages, with the checks that the schema cannot do.

    Raises: InputFault: no messages, unknown parts, or an image that is not a `data:` URL.
    """
    if not messages:
        raise InputFault("messages: there is none; say something.", "messages")
    answered = last_answer([message.role for message in messages])
    return [_message(m, f"messages[{i}]", is_earlier=i < answered) for i, m in enumerate(messages)]


def _message(message: ChatMessage, param: str, *, is_earlier: bool) -> Message:
    visible, inline_reasoning = _without_thoughts(message)
    return Message(
        role="tool" if message.role == "function" else message.role,
        content=_content(visible, f"{param}.content", required=not is_earlier and message.role != "tool"),
        reasoning=message.reasoning_content or message.reasoning or inline_reasoning or None,
        tool_calls=tuple(_tool_call(c, f"{param}.tool_calls[{i}]") for i, c in enumerate(message.tool_calls or [])),
        tool_call_id=message.tool_call_id,
        name=message.name,
    )


def _without_thoughts(message: ChatMessage) -> tuple[str | list[dict[str, Any]] | None, str]:
    """The content without parts of reasoning, which Mistral's clients send back, and the text of these parts."""
    if message.role != "assistant" or not isinstance(message.content, list):
        return message.content, ""
    visible = [part for part in message.content if part.get("type") not in _THOUGHTS]
    reasoning = ""
    for part in message.content:
        text = part.get(part["type"]) if part.get("type") in _THOUGHTS else None
        inner = text if isinstance(text, list) else [{"text": text}]
        reasoning += "".join(
            str(p["text"]) for p in inner if isinstance(p, dict) and isinstance(p.get("text"), str)
        )
    return visible, reasoning


def _content(content: str | list[dict[str, Any]] | None, param: str, *, required: bool) -> str | tuple[Part, ...]:
    if content is None or isinstance(content, str):
        return content or ""
    fields = ((part, f"{param}[{index}]") for index, part in enumerate(content))
    parts = tuple(part_or_text(partial(_part, part, name), name, required=required) for part, name in fields)
    joined = joined_text(parts)
    return parts if joined is None else joined


def _part(part: dict[str, Any], param: str) -> Part:
    kind = part.get("type")
    if kind in ("text", "input_text", "output_text", "refusal"):
        text = part.get("refusal" if kind == "refusal" else "text")
        if not isinstance(text, str):
            raise InputFault(f"{param}.text must be a string.", f"{param}.text")
        return with_fields(part, text)
    if kind == "image_url":
        image = part.get("image_url")
        url = image.get("url") if isinstance(image, dict) else image
        return decode_data_url(url, f"{param}.image_url")
    if kind == "file":
        return attached_text(part.get("file"), f"{param}.file")
    raise UnreadablePart(f"{param}.type {kind!r} is not supported; use text, image_url or file.", f"{param}.type")


def _tool_call(call: dict[str, Any], param: str) -> ToolCall:
    custom = call.get("custom")
    if call.get("type") == "custom" and isinstance(custom, dict):
        name, text = custom.get("name"), custom.get("input")
        if not isinstance(name, str) or not isinstance(text, str):
            raise InputFault(f"{param}.custom needs a name and an input.", f"{param}.custom")
        return ToolCall(id=str(call.get("id") or ""), name=name, arguments=custom_tools.as_arguments(text))
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InputFault(f"{param}.function.name is missing.", f"{param}.function.name")
    arguments = function.get("arguments") or ""
    if isinstance(arguments, dict):  # Ollama's form, which clients of several protocols repeat
        arguments = json.dumps(arguments, ensure_ascii=False)
    if not isinstance(arguments, str):
        raise InputFault(f"{param}.function.arguments must be a JSON string.", f"{param}.function.arguments")
    return ToolCall(id=str(call.get("id") or ""), name=function["name"], arguments=arguments)


def tool(entry: dict[str, Any], param: str) -> ToolDefinition:
    """Translate one entry of `tools`.

    Raises: InputFault: it is not a function, or its name or schema is missing or malformed.
    """
    if entry.get("type") == "custom":
        return _custom(entry.get("custom"), f"{param}.custom")
    if entry.get("type", "function") != "function":
        raise InputFault(
            f"{param}.type {entry.get('type')!r} is not supported; use function or custom.", f"{param}.type"
        )
    function = entry.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InputFault(f"{param}.function.name is missing.", f"{param}.function.name")
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise InputFault(f"{param}.function.parameters must be a JSON schema.", f"{param}.function.parameters")
    definition = ToolDefinition(
        name=function["name"],
        description=str(function.get("description") or ""),
        strict=function.get("strict") is True,
        **({"parameters": parameters} if parameters else {}),
    )
    structured.check_parameters(definition.parameters, f"{param}.function.parameters")
    return definition


def _custom(tool: object, param: str) -> ToolDefinition:
    """A tool with free-text input; its grammar is shown to the model."""
    fields = tool if isinstance(tool, dict) else {}
    name, form = fields.get("name"), fields.get("format") or {}
    if not isinstance(name, str) or not name:
        raise InputFault(f"{param}.name is missing.", f"{param}.name")
    if not isinstance(form, dict) or form.get("type", "text") not in ("text", "grammar"):
        raise InputFault(f"{param}.format.type must be text or grammar.", f"{param}.format")
    grammar = form.get("grammar") or {} if form.get("type") == "grammar" else {}
    if not isinstance(grammar, dict):
        raise InputFault(f"{param}.format.grammar must be an object.", f"{param}.format.grammar")
    described = str(fields.get("description") or "")
    return custom_tools.definition(name, described, grammar.get("syntax"), grammar.get("definition"))


def allowed_tools(
    tools: tuple[ToolDefinition, ...], choice: str | dict[str, Any] | None
) -> tuple[tuple[ToolDefinition, ...], str | dict[str, Any] | None]:
    """The tools that an `allowed_tools` choice permits, and its mode; any other choice permits all.

    Raises: InputFault: it names no tool, or one that is not in tools.
    """
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return tools, choice
    inner = choice.get("allowed_tools", choice)  # the Responses protocol has these fields one level higher
    listed = inner.get("tools") if isinstance(inner, dict) else None
    picked = [_name_in(tool) for tool in listed] if isinstance(listed, list) else []
    names = [definition.name for definition in tools]
    unknown = [name for name in picked if name not in names]
    if not picked or unknown or inner.get("mode") not in ("auto", "required"):
        why = f"names {unknown[0]!r}, which is not in tools" if unknown else "needs a mode and tools"
        raise InputFault(f"tool_choice.allowed_tools {why}.", "tool_choice")
    return tuple(definition for definition in tools if definition.name in picked), str(inner["mode"])


def _name_in(tool: object) -> object:
    """The name in an entry of `allowed_tools`."""
    fields = tool if isinstance(tool, dict) else {}
    inner = (fields.get(kind) for kind in ("function", "custom"))
    return next((holder for holder in inner if isinstance(holder, dict)), fields).get("name")


def tool_choice(choice: str | dict[str, Any] | None) -> ToolChoice:
    """`none`, `auto`, `required`, or the function that an object names.

    Raises: InputFault: anything else.
    """
    if choice is None or choice == "auto":
        return "auto"
    if choice == "none":
        return "none"
    if choice in ("required", "any"):
        return "required"
    if isinstance(choice, dict):
        function = choice.get("function") or choice.get("custom")
        name = function.get("name") if isinstance(function, dict) else choice.get("name")
        if isinstance(name, str):
            return NamedTool(name=name)
    raise InputFault("tool_choice must be none, auto, required or name a function.", "tool_choice")


_OUTPUTS: Final = tuple(OutputFields.model_fields)


def output_of(body: OutputFields) -> tuple[Constraint | None, str]:
    """The constraint of the output field that is set, and the field's name.

    Raises: InputFault: two fields are set, or one is invalid.
    """
    fields = [n for n in _OUTPUTS if getattr(body, n) is not None]
    if len(fields) > 1:
        raise InputFault(f"{' and '.join(fields)} cannot be combined.", fields[1])
    if not fields:
        return None, "response_format"
    name, value = fields[0], getattr(body, fields[0])
    if name == "response_format":
        return response_format(value, name), name
    if name == "structured_outputs":
        return _structured(value), name
    return _constraint_of(name.removeprefix("guided_"), value, name), name


def _structured(fields: dict[str, Any]) -> Constraint | None:
    """Translate vLLM's object, which must contain exactly one constraint."""
    names = [name for name, value in fields.items() if value not in (None, False)]
    if len(names) != 1:
        raise InputFault("structured_outputs must hold exactly one constraint.", "structured_outputs")
    param = f"structured_outputs.{names[0]}"
    if names[0] == "json_object":
        return structured.of_schema({}, param)
    return _constraint_of(names[0], fields[names[0]], param)


def _constraint_of(kind: str, value: Any, param: str) -> Constraint:
    """A JSON schema, a regular expression, a grammar or a choice, in the names of llama-server and vLLM."""
    if kind in ("json", "json_schema"):
        return structured.of_schema(_parsed(value, param), param, strict=False)
    if kind == "regex":
        return structured.of_grammar("regex", value, param)
    if kind == "grammar":
        return structured.of_grammar("gbnf" if "::=" in str(value) else "lark", value, param)
    if kind == "choice" and isinstance(value, list) and value and all(isinstance(c, str) and c for c in value):
        either = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in value)
        return structured.of_grammar("lark", f"start: {either}", param)
    raise InputFault(f"{param} is not understood here.", param)


def _parsed(value: Any, param: str) -> Any:
    """Parse a schema that was sent as text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise InputFault(f"{param} is no JSON.", param) from None


def response_format(response: dict[str, Any], param: str) -> Constraint | None:
    """OpenAI's `text`, `json_object` and `json_schema`; also `regex`, `lark` and `grammar` (GBNF).

    Raises:
        InputFault: An unknown type or a missing part.
        ConstraintImpossible: The constraint cannot be enforced.
    """
    kind = response.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return structured.of_schema(response.get("schema") or {}, f"{param}.schema", strict=False)
    if kind == "json_schema":
        inner = response.get("json_schema")
        form = inner if isinstance(inner, dict) else response
        schema, strict = form.get("schema"), form.get("strict") is True
        if schema is None:
            raise InputFault(f"{param}.json_schema.schema is missing.", f"{param}.json_schema.schema")
        return structured.of_schema(schema, f"{param}.json_schema.schema", strict=strict)
    if kind in _GRAMMARS:
        source = response.get(str(kind)) or response.get("pattern") or response.get("grammar")
        grammar: structured.Kind = "regex" if kind == "regex" else "lark" if kind == "lark" else "gbnf"
        return structured.of_grammar(grammar, source, f"{param}.{kind}")
    raise InputFault(f"{param}.type {kind!r} is not supported.", f"{param}.type")
