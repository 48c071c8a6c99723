"""Converts a conversation for a server of OpenAI's protocol, and reports what that server does not support.

Unsupported features are rejected if the response would differ, and reported in a note if only its sampling would.
"""

import base64
import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from engine.chat.query import ChatQuery
from engine.chat.types import ImagePart, Message, NamedTool
from engine.core.errors import InputFault
from engine.core.types import Constraint, GenerationRequest
from engine.message_catalog.reasons import because
from quantize.files.sampling_keys import SAMPLING

# Sampling fields of OpenAI's protocol; all servers accept them.
_STANDARD: Final = {"logit_bias", "seed"} | {name for name, row in SAMPLING.items() if row.openai}
# Other fields under vLLM's names, which SGLang and FastFlowLM share.
_GPU: Final = {name: row.vllm for name, row in SAMPLING.items() if row.vllm}


class ServerKind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of server: the fields it accepts in addition to OpenAI's common ones, and those it rejects.

    `sampling`: Tessera's names to its names (None: it accepts all of Tessera's). `grammars`: the field for each
    kind of grammar. `is_templated`: it renders the model's template, and accepts template variables and starts of
    responses; `takes_template`: also another template. `has_extensions`: `min_tokens` and similar fields.
    `is_salted`: it separates the cached prefixes of each `cache_salt`. `counts_tokens`: it has /tokenize; with
    `counts_rendered` that gets the text that /apply-template renders from a chat. `refuses`: what it does not
    support, as names of OpenAI's fields (`prompt`: a bare prompt; `images`). `streams_usage`: it has
    `stream_options`.
    """

    sampling: dict[str, str] | None = {}
    grammars: dict[str, tuple[str, ...]] = {}
    is_templated: bool = True
    takes_template: bool = False
    has_extensions: bool = False
    is_salted: bool = False
    counts_tokens: bool = True
    counts_rendered: bool = False
    streams_usage: bool = True
    limit: str = "max_tokens"
    refuses: frozenset[str] = frozenset()


_VLLM_GRAMMARS: Final[dict[str, tuple[str, ...]]] = {
    "regex": ("structured_outputs", "regex"),
    "gbnf": ("structured_outputs", "grammar"),
}
KINDS: Final = {
    "openai": ServerKind(is_templated=False, counts_tokens=False, limit="max_completion_tokens"),
    "vllm": ServerKind(
        sampling=_GPU, grammars=_VLLM_GRAMMARS, takes_template=True, has_extensions=True, is_salted=True
    ),
    "sglang": ServerKind(
        sampling=_GPU,
        grammars={"regex": ("regex",), "gbnf": ("ebnf",)},
        has_extensions=True,
        counts_tokens=False,
    ),
    "llama-server": ServerKind(sampling=None, grammars={"gbnf": ("grammar",)}, counts_rendered=True),
    "tessera": ServerKind(
        sampling=None,
        grammars={"regex": ("structured_outputs", "regex"), "gbnf": ("grammar",), "lark": ("grammar",)},
        takes_template=True,
        has_extensions=True,
    ),
    "flm": ServerKind(
        sampling=_GPU,
        is_templated=False,
        counts_tokens=False,
        streams_usage=False,
        refuses=frozenset({"response_format", "logprobs", "logit_bias", "images", "prompt"}),
    ),
}


def server_kind(name: str) -> ServerKind:
    """The row of a kind of server; OpenAI's for an unknown kind."""
    return KINDS.get(name, KINDS["openai"])


class ForwardedChat(GenerationRequest, frozen=True, kw_only=True):
    """A chat that another server renders and parses. `body` is its request without model, seed and streaming."""

    body: dict[str, Any] = msgspec.field(default_factory=dict)


def forward(query: ChatQuery, flavour: str) -> tuple[ForwardedChat, tuple[str, ...]]:
    """The request for a server of this kind, and notes on the options that were not sent.

    Raises: InputFault: the server cannot produce the requested response.
    """
    kind = flavour if flavour in KINDS else "openai"
    _refuse(
        kind,
        {
            query.output_param: ("response_format", query.output is not None),
            "logprobs": ("logprobs", query.logprobs is not None),
            "logit_bias": ("logit_bias", bool(query.sampling.get("logit_bias"))),
            "messages": ("images", any(map(_has_images, query.messages))),
        },
    )
    body: dict[str, Any] = {"messages": [_message(m, kind) for m in query.messages]}
    silent: list[str] = []
    _tools(query, body)
    if query.output is not None:
        _output(query.output, kind, query.output_param, body)
    _reasoning(query, kind, body, silent)
    _sampling(query.sampling, kind, body, silent)
    if query.logprobs is not None:
        body |= {"logprobs": True, "top_logprobs": query.logprobs}
    _form(query, kind, body)
    _length(query, kind, body, silent, server_kind(kind).limit)
    # The prompt's text, for code that counts by length.
    return ForwardedChat(prompt="", add_special=False, max_tokens=query.max_tokens, body=body), _notes(silent)


def forward_text(request: GenerationRequest, flavour: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The body of a bare prompt for a server of this kind, and notes on the options that were not sent.

    Raises: InputFault: the server cannot produce the requested response.
    """
    refused = {
        "grammar": request.constraint,
        "images": request.images,
        "lora": request.lora,
        "logprobs": request.logprobs is not None,
    }
    for param, value in refused.items():
        if value:
            raise InputFault(f"{param} is not passed on with a bare prompt to an upstream.", param)
    kind = flavour if flavour in KINDS else "openai"
    _refuse(kind, {"prompt": ("prompt", True)})
    body: dict[str, Any] = {"prompt": request.prompt}
    silent: list[str] = []
    _sampling({name: getattr(request.sampling, name) for name in request.explicit}, kind, body, silent)
    if request.sampling.seed is not None:  # each choice of a request has its own seed
        body["seed"] = request.sampling.seed
    _length(request, kind, body, silent, "max_tokens")
    return body, _notes(silent)


def _refuse(kind: str, parameters: dict[str, tuple[str, bool]]) -> None:
    """Reject what a kind of server does not support; `parameters` maps a parameter to its name there, if set.

    Raises: InputFault.
    """
    refuses = server_kind(kind).refuses
    for param, (name, is_set) in parameters.items():
        if is_set and name in refuses:
            what = {"images": "images", "prompt": "bare prompts, only chats"}.get(name, param)
            raise InputFault(because("server_cannot", kind=kind, what=what), param)


def _notes(silent: list[str]) -> tuple[str, ...]:
    return (f"Not sent, for it is not understood there: {', '.join(silent)}.",) if silent else ()


def _message(message: Message, kind: str) -> dict[str, Any]:
    role = "system" if message.role == "developer" and kind != "openai" else message.role
    out: dict[str, Any] = {"role": role}
    if isinstance(message.content, str):
        out["content"] = message.content
    else:
        out["content"] = [
            {"type": "image_url", "image_url": {"url": _data_url(part)}}
            if isinstance(part, ImagePart)
            else {"type": "text", "text": part.text, **({} if kind == "openai" else part.fields)}
            for part in message.content
        ]
    if message.tool_calls:
        out["content"] = out["content"] or None
        out["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in message.tool_calls
        ]
    if message.reasoning and kind != "openai":
        out["reasoning_content"] = message.reasoning
    if message.tool_call_id is not None:
        out["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        out["name"] = message.name
    return out


def _has_images(message: Message) -> bool:
    return not isinstance(message.content, str) and any(isinstance(part, ImagePart) for part in message.content)


def _data_url(image: ImagePart) -> str:
    return f"data:{image.media_type};base64,{base64.b64encode(image.data).decode()}"


def _tools(query: ChatQuery, body: dict[str, Any]) -> None:
    if not query.tools:
        return
    body["tools"] = [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
                **({"strict": True} if tool.strict else {}),
            },
        }
        for tool in query.tools
    ]
    choice = query.tool_choice
    body["tool_choice"] = (
        {"type": "function", "function": {"name": choice.name}} if isinstance(choice, NamedTool) else choice
    )
    if not query.parallel_tool_calls:
        body["parallel_tool_calls"] = False


def _output(output: Constraint, kind: str, param: str, body: dict[str, Any]) -> None:
    if output.kind == "json_object":
        body["response_format"] = {"type": "json_object"}
        return
    if output.kind == "json_schema":
        schema = {"name": "answer", "schema": json.loads(output.source), "strict": output.strict}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
        return
    path = server_kind(kind).grammars.get(output.kind)
    if path is None:
        raise InputFault(f"{param}: a server of kind {kind} takes no {output.kind}; use a JSON schema.", param)
    body[path[0]] = output.source if len(path) == 1 else {path[1]: output.source}


def _reasoning(query: ChatQuery, kind: str, body: dict[str, Any], silent: list[str]) -> None:
    variables = dict(query.template_variables)
    if query.thinking is not None:
        variables |= {"enable_thinking": query.thinking, "thinking": query.thinking}
    if variables and server_kind(kind).is_templated:
        body["chat_template_kwargs"] = variables
    elif variables:
        silent.extend(variables)
    if query.reasoning_effort is not None:
        body["reasoning_effort"] = query.reasoning_effort
    if query.reasoning_budget is not None:
        if kind == "tessera":
            body["thinking_budget"] = query.reasoning_budget
        else:
            silent.append("reasoning_budget")


def _sampling(explicit: Mapping[str, Any], kind: str, body: dict[str, Any], silent: list[str]) -> None:
    names = server_kind(kind).sampling
    for name, value in explicit.items():
        if value is None:
            continue
        if name in _STANDARD:
            body[name] = {str(k): v for k, v in value.items()} if name == "logit_bias" else value
        elif names is None:
            body["samplers" if name == "order" else name] = value
        elif name in names:
            body[names[name]] = value
        else:
            silent.append(name)


def _form(query: ChatQuery, kind: str, body: dict[str, Any]) -> None:
    if query.template is not None:
        if not server_kind(kind).takes_template:
            raise InputFault(f"chat_template: a server of kind {kind} takes none.", "chat_template")
        body["chat_template"] = query.template
    if query.continue_final:
        if not server_kind(kind).is_templated:
            raise InputFault(f"messages: a server of kind {kind} does not continue an answer.", "messages")
        body |= {"continue_final_message": True, "add_generation_prompt": False}
    if query.lora:
        raise InputFault("lora: adapters are chosen here only; name the adapter's model there instead.", "lora")


def _length(
    query: ChatQuery | GenerationRequest, kind: str, body: dict[str, Any], silent: list[str], limit: str
) -> None:
    if query.max_tokens is not None:
        body[limit] = query.max_tokens
    if query.stop:
        body["stop"] = list(query.stop)
    extensions = {
        "ignore_eos": query.ignore_eos or None,
        "min_tokens": query.min_tokens or None,
        "stop_token_ids": list(query.stop_token_ids) or None,
    }
    ours = {
        "context_shift": query.context_shift or None,
        "loop_guard": query.loop_guard or None,
        "deterministic": query.deterministic or None,
    }
    for name, value in (extensions | ours).items():
        if value is None:
            continue
        if kind == "tessera" or (name in extensions and server_kind(kind).has_extensions):
            body[name] = value
        elif name != "loop_guard":  # without it only responses that loop would change
            silent.append(name)
