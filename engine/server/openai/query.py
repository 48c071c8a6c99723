"""A chat completion request as the engine's own query: tools, tool choice, output format, reasoning."""

from typing import Any

from engine.chat import structured
from engine.chat.conversation import ChatQuery
from engine.chat.types import NamedTool, ToolChoice, ToolDefinition
from engine.errors import InputFault
from engine.server.openai.messages import to_messages
from engine.server.openai.schemas import ChatRequest, CompletionRequest
from engine.types import Constraint

_GRAMMARS = frozenset({"regex", "lark", "grammar", "gbnf"})


def to_query(body: ChatRequest) -> ChatQuery:
    """Translate a request.

    Raises: InputFault: a tool, a choice or a format that is not understood; `param` names the field.
    """
    output, param = output_of(body)
    return ChatQuery(
        messages=tuple(to_messages(body.messages)),
        tools=tuple(tool(entry, f"tools[{i}]") for i, entry in enumerate(body.tools or [])),
        tool_choice=tool_choice(body.tool_choice),
        parallel_tool_calls=body.parallel_tool_calls is not False,
        output=output,
        output_param=param,
        reasoning_effort=body.reasoning_effort,
        template=body.chat_template,
        continue_final=bool(body.continue_final_message),
        template_variables=body.chat_template_kwargs or {},
        max_tokens=body.answer_limit,
        stop=body.stops(),
        sampling=body.sampling(),
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        ignore_eos=bool(body.ignore_eos),
        speculate=body.speculate,
        context_shift=bool(body.context_shift),
        lora=body.adapters(),
    )


def tool(entry: dict[str, Any], param: str) -> ToolDefinition:
    """One entry of `tools`.

    Raises: InputFault: it is no function, or its name or schema is missing or malformed.
    """
    if entry.get("type", "function") != "function":
        raise InputFault(f"{param}.type {entry.get('type')!r} is not supported; use function.", f"{param}.type")
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
    structured.of_schema(definition.parameters, f"{param}.function.parameters")
    return definition


def tool_choice(choice: str | dict[str, Any] | None) -> ToolChoice:
    """`none`, `auto`, `required`, or the one function that an object names.

    Raises: InputFault: anything else.
    """
    if choice is None or choice == "auto":
        return "auto"
    if choice == "none":
        return "none"
    if choice in ("required", "any"):
        return "required"
    if isinstance(choice, dict):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else choice.get("name")
        if isinstance(name, str):
            return NamedTool(name=name)
    raise InputFault("tool_choice must be none, auto, required or name a function.", "tool_choice")


def output_of(body: ChatRequest | CompletionRequest) -> tuple[Constraint | None, str]:
    """The constraint of `response_format`, or of llama-server's `json_schema` and `grammar`, and its field.

    Raises: InputFault: two of them, or one that is not understood.
    """
    given = [n for n in ("response_format", "json_schema", "grammar") if getattr(body, n) is not None]
    if len(given) > 1:
        raise InputFault(f"{' and '.join(given)} cannot be combined.", given[1])
    if body.json_schema is not None:
        return structured.of_schema(body.json_schema, "json_schema"), "json_schema"
    if body.grammar is not None:
        return structured.of_grammar("gbnf", body.grammar, "grammar"), "grammar"
    if body.response_format is None:
        return None, "response_format"
    return response_format(body.response_format, "response_format"), "response_format"


def response_format(wanted: dict[str, Any], param: str) -> Constraint | None:
    """OpenAI's `text`, `json_object` and `json_schema`; also `regex`, `lark` and `grammar` (GBNF).

    Raises: InputFault: an unknown type or a missing part. ConstraintImpossible: it cannot be honoured.
    """
    kind = wanted.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return structured.of_schema(wanted.get("schema") or {}, f"{param}.schema")
    if kind == "json_schema":
        inner = wanted.get("json_schema")
        schema = inner.get("schema") if isinstance(inner, dict) else wanted.get("schema")
        if schema is None:
            raise InputFault(f"{param}.json_schema.schema is missing.", f"{param}.json_schema.schema")
        return structured.of_schema(schema, f"{param}.json_schema.schema")
    if kind in _GRAMMARS:
        source = wanted.get(str(kind)) or wanted.get("pattern") or wanted.get("grammar")
        grammar: structured.Kind = "regex" if kind == "regex" else "lark" if kind == "lark" else "gbnf"
        return structured.of_grammar(grammar, source, f"{param}.{kind}")
    raise InputFault(f"{param}.type {kind!r} is not supported.", f"{param}.type")
