"""Converts the tools of a Responses request to functions, and their calls to the items that the client expects."""

from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError

from engine.chat import structured
from engine.chat.types import NamedTool, ToolChoice, ToolDefinition
from engine.core.errors import InputFault
from engine.server import custom_tools
from engine.server.body import fault
from engine.server.openai.vector_store_schemas import FileSearch

# Agents always offer these. They are ignored, because the response is of the same kind without them.
_SKIPPED: Final = ("web_search", "tool_search", "image_generation")


@dataclass
class Toolbox:
    """`definitions` are shown to the model; `custom` and `namespaced` define the item type of their calls.

    `search` is run by the server before the model responds.
    """

    definitions: list[ToolDefinition] = field(default_factory=list)
    custom: set[str] = field(default_factory=set)
    namespaced: dict[str, tuple[str, str]] = field(default_factory=dict)
    without_effect: list[str] = field(default_factory=list)
    search: FileSearch | None = None

    def flat_name(self, name: str, namespace: str | None) -> str:
        """The function name that the model sees."""
        return name if namespace is None else _joined(namespace, name)

    def item(self, item_id: str, call_id: str, name: str) -> dict[str, Any]:
        """The output item for the start of a call."""
        base = {"id": item_id, "call_id": call_id, "status": "in_progress"}
        if name in self.custom:
            return {"type": "custom_tool_call", **base, "name": name, "input": ""}
        namespace, own = self.namespaced.get(name, (None, name))
        call = {"type": "function_call", **base, "name": own, "arguments": ""}
        return call if namespace is None else {**call, "namespace": namespace}


def whole_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool as a response repeats it: a function has all of its fields."""
    if tool.get("type") != "function":
        return tool
    return {"description": None, "parameters": None, **tool, "strict": tool.get("strict") is True}


def toolbox(tools: list[dict[str, Any]]) -> Toolbox:
    """Convert the tools of a request.

    Raises: InputFault: a tool without a name, or one that only another server can run.
    """
    box = Toolbox()
    for index, tool in enumerate(tools):
        _add(box, tool, f"tools[{index}]")
    return box


def _add(box: Toolbox, tool: dict[str, Any], param: str) -> None:
    kind = tool.get("type")
    if kind == "function":
        box.definitions.append(_function(tool, param))
    elif kind == "custom":
        name = _name(tool, param)
        box.custom.add(name)
        form = tool.get("format") or {}
        grammar = str(form.get("definition")) if form.get("type") == "grammar" else None
        described = str(tool.get("description") or "")
        box.definitions.append(custom_tools.definition(name, described, form.get("syntax"), grammar))
        if grammar is not None:
            box.without_effect.append(f"{param}.format")
    elif kind == "namespace":
        namespace = _name(tool, param)
        for index, inner in enumerate(tool.get("tools") or ()):
            where = f"{param}.tools[{index}]"
            if not isinstance(inner, dict) or inner.get("type", "function") != "function":
                raise InputFault(f"{where} must be a function.", where)
            definition = _function(inner, where, _joined(namespace, _name(inner, where)))
            box.namespaced[definition.name] = (namespace, str(inner["name"]))
            box.definitions.append(definition)
    elif kind == "file_search":
        if box.search is not None:
            raise InputFault(f"{param}: name all stores in one file_search.", param)
        box.search = _file_search(tool, param)
        box.without_effect += [f"{param}.{name}" for name in box.search.ignored()]
    elif isinstance(kind, str) and kind.startswith(_SKIPPED):
        box.without_effect.append(f"{param} ({kind})")
    else:
        raise InputFault(f"{param}.type {kind!r} cannot be run here.", f"{param}.type")


def _file_search(tool: dict[str, Any], param: str) -> FileSearch:
    try:
        return FileSearch.model_validate(tool)
    except ValidationError as error:
        problem = fault(error)
        raise InputFault(f"{param}.{problem}", f"{param}.{problem.param}" if problem.param else param) from None


def _joined(namespace: str, name: str) -> str:
    return f"{namespace}{name}" if namespace.endswith("_") else f"{namespace}__{name}"


def _name(tool: dict[str, Any], param: str) -> str:
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise InputFault(f"{param}.name is missing.", f"{param}.name")
    return name


def _function(tool: dict[str, Any], param: str, name: str | None = None) -> ToolDefinition:
    parameters = tool.get("parameters") or {"type": "object", "properties": {}}
    structured.check_parameters(parameters, f"{param}.parameters")
    return ToolDefinition(
        name=name or _name(tool, param),
        description=str(tool.get("description") or ""),
        parameters=parameters,
        strict=tool.get("strict") is True,
    )


def tool_choice(choice: str | dict[str, Any] | None, box: Toolbox) -> ToolChoice:
    """Convert `tool_choice`. Raises: InputFault: not none, auto, required or the name of a tool."""
    if choice in (None, "auto"):
        return "auto"
    if choice == "none":
        return "none"
    if choice == "required":
        return "required"
    if isinstance(choice, dict) and isinstance(choice.get("name"), str):
        return NamedTool(name=box.flat_name(choice["name"], choice.get("namespace")))
    raise InputFault("tool_choice must be none, auto, required or name a tool.", "tool_choice")
