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
from engine.server.responses.schemas import ADDITIONAL_TOOLS

# Agents always offer these. They are ignored, because the response is of the same kind without them.
_SKIPPED: Final = ("web_search", "tool_search", "image_generation")
# OpenAI's own name for the space of tools without a namespace.
_PLAIN_NAMESPACE: Final = "functions"


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
        namespace, own = self.namespaced.get(name, (None, name))
        call = {"id": item_id, "call_id": call_id, "status": "in_progress", "name": own}
        if namespace is not None:
            call["namespace"] = namespace
        if name in self.custom:
            return {"type": "custom_tool_call", **call, "input": ""}
        return {"type": "function_call", **call, "arguments": ""}

    def update(self, other: "Toolbox") -> None:
        """Add the tools of another box, which replace those of the same name."""
        replaced = {definition.name for definition in other.definitions}
        self.definitions = [d for d in self.definitions if d.name not in replaced] + other.definitions
        self.custom = (self.custom - replaced) | other.custom
        self.namespaced = {n: v for n, v in self.namespaced.items() if n not in replaced} | other.namespaced
        self.without_effect += other.without_effect
        self.search = other.search or self.search


def whole_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool as a response repeats it: a function has all of its fields."""
    if tool.get("type") != "function":
        return tool
    return {"description": None, "parameters": None, **tool, "strict": tool.get("strict") is True}


def toolbox(tools: list[dict[str, Any]]) -> Toolbox:
    """Convert the tools of a request.

    Raises: InputFault: a tool without a name, or one that only another server can run.
    """
    return _collected(tools, "tools")


def add_from_items(box: Toolbox, items: list[dict[str, Any]]) -> None:
    """Add the tools that items of a conversation bring; a later tool replaces an earlier one of its name.

    Raises: InputFault: as `toolbox`.
    """
    for index, item in enumerate(items):
        if item.get("type") == ADDITIONAL_TOOLS:
            box.update(_collected(item.get("tools"), f"input[{index}].tools"))


def _collected(tools: object, param: str) -> Toolbox:
    box = Toolbox()
    for index, tool in enumerate(_listed(tools, param)):
        _add(box, tool, f"{param}[{index}]")
    return box


def _listed(tools: object, param: str) -> list[dict[str, Any]]:
    """The tools if they are a list of objects. Raises: InputFault."""
    listed = tools if isinstance(tools, list) else None if tools is not None else []
    if listed is None or not all(isinstance(tool, dict) for tool in listed):
        raise InputFault(f"{param} must be a list of tools.", param)
    return listed


def _add(box: Toolbox, tool: dict[str, Any], param: str) -> None:
    kind = tool.get("type")
    if kind in ("function", "custom"):
        _add_callable(box, tool, param)
    elif kind == "namespace":
        namespace = _name(tool, param)
        for index, inner in enumerate(_listed(tool.get("tools"), f"{param}.tools")):
            where = f"{param}.tools[{index}]"
            if inner.get("type", "function") not in ("function", "custom"):
                raise InputFault(f"{where} must be a function or a custom tool.", where)
            _add_callable(box, inner, where, namespace)
    elif kind == "file_search":
        if box.search is not None:
            raise InputFault(f"{param}: name all stores in one file_search.", param)
        box.search = _file_search(tool, param)
        box.without_effect += [f"{param}.{name}" for name in box.search.ignored()]
    elif isinstance(kind, str) and kind.startswith(_SKIPPED):
        box.without_effect.append(f"{param} ({kind})")
    else:
        raise InputFault(f"{param}.type {kind!r} cannot be run here.", f"{param}.type")


def _add_callable(box: Toolbox, tool: dict[str, Any], param: str, namespace: str | None = None) -> None:
    """Add a function or a custom tool; in a namespace, under the name that the model sees."""
    own = _name(tool, param)
    name = box.flat_name(own, namespace)
    if namespace is not None:
        box.namespaced[name] = (namespace, own)
    if tool.get("type") != "custom":
        box.definitions.append(_function(tool, param, name))
        return
    box.custom.add(name)
    form = tool.get("format") or {}
    if not isinstance(form, dict):
        raise InputFault(f"{param}.format must be an object.", f"{param}.format")
    grammar = str(form.get("definition")) if form.get("type") == "grammar" else None
    described = str(tool.get("description") or "")
    box.definitions.append(custom_tools.definition(name, described, form.get("syntax"), grammar))
    if grammar is not None:
        box.without_effect.append(f"{param}.format")


def _file_search(tool: dict[str, Any], param: str) -> FileSearch:
    try:
        return FileSearch.model_validate(tool)
    except ValidationError as error:
        problem = fault(error)
        raise InputFault(f"{param}.{problem}", f"{param}.{problem.param}" if problem.param else param) from None


def _joined(namespace: str, name: str) -> str:
    if namespace == _PLAIN_NAMESPACE:
        return name
    return f"{namespace}{name}" if namespace.endswith("_") else f"{namespace}__{name}"


def _name(tool: dict[str, Any], param: str) -> str:
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise InputFault(f"{param}.name is missing.", f"{param}.name")
    return name


def _function(tool: dict[str, Any], param: str, name: str) -> ToolDefinition:
    parameters = tool.get("parameters") or {"type": "object", "properties": {}}
    structured.check_parameters(parameters, f"{param}.parameters")
    return ToolDefinition(
        name=name,
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
        namespace = choice.get("namespace")
        return NamedTool(name=box.flat_name(choice["name"], namespace if isinstance(namespace, str) else None))
    raise InputFault("tool_choice must be none, auto, required or name a tool.", "tool_choice")
