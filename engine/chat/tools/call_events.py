"""Event sink for the payload parsers: numbers, names and closes the calls that they find."""

import json
import secrets
from collections.abc import Callable, Sequence

from engine.chat.tools.dialect import IdStyle
from engine.chat.tools.lenient_json import LenientJson, repair
from engine.chat.tools.schema_types import properties
from engine.chat.types import AnswerEvent, CallArguments, CallEnded, CallMalformed, CallStarted, ToolDefinition

_NAMESPACE = "functions."
_NINE = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


def new_call_id(style: IdStyle, name: str, index: int) -> str:
    """A call id in the format that the model's own template expects."""
    if style == "indexed":
        return f"functions.{name}:{index}"
    if style == "nine":
        return "".join(secrets.choice(_NINE) for _ in range(9))
    return f"call_{secrets.token_hex(12)}"


class CallSink:
    """Collects the events of all calls of one response, and passes each to `emit`."""

    def __init__(
        self, tools: Sequence[ToolDefinition], emit: Callable[[AnswerEvent], None], id_style: IdStyle = "call"
    ) -> None:
        self._emit = emit
        self._id_style = id_style
        self._tools = {tool.name: tool for tool in tools}
        self._folded: dict[str, list[str]] = {}
        for name in self._tools:
            self._folded.setdefault(_fold(name), []).append(name)
        self._wrote = ""
        self.count = 0

    def is_tool(self, name: str) -> bool:
        """Whether the name, as a model may misspell it, is one of the request's tools."""
        return self._meant(name) in self._tools

    def schema(self, name: str) -> dict[str, object]:
        """The parameters of a tool; {} for an unknown tool."""
        tool = self._tools.get(self._meant(name))
        return dict(tool.parameters) if tool else {}

    def start(self, name: str) -> None:
        name = self._meant(name)
        self._emit(CallStarted(self.count, new_call_id(self._id_style, name, self.count), name))
        self._wrote = ""

    def _meant(self, name: str) -> str:
        """The tool of this name, else the only tool that could be misspelled this way, else the name unchanged."""
        for spelled in (name, name.strip(), _bare(name), _bare(name).removeprefix(_NAMESPACE)):
            if spelled in self._tools:
                return spelled
        similar = self._folded.get(_fold(name), [])
        return similar[0] if len(similar) == 1 else name.strip()

    def write(self, text: str) -> None:
        """Add JSON text to the arguments."""
        if text:
            self._wrote = self._wrote or text[:1]
            self._emit(CallArguments(self.count, text))

    def end(self) -> None:
        """Complete the call; one without arguments gets an empty object."""
        if not self._wrote:
            self.write("{}")
        self._emit(CallEnded(self.count))
        self.count += 1

    def whole(self, name: str, arguments: object) -> None:
        """Add a call whose arguments were known only at its end."""
        self.start(name)
        self.write(self.as_object(name, arguments))
        self.end()

    def malformed(self, text: str) -> None:
        """Report text that was meant to be a call."""
        if text.strip():
            self._emit(CallMalformed(text.strip()))

    def as_object(self, name: str, arguments: object) -> str:
        """Arguments of any kind as the JSON text of an object."""
        if isinstance(arguments, str):
            text = arguments.strip()
            if text.startswith("{"):
                return repair(text)
            if not text:
                return "{}"
        if arguments is None:
            return "{}"
        if not isinstance(arguments, dict):
            names = list(properties(self.schema(name)))
            arguments = {names[0] if len(names) == 1 else "input": arguments}
        return json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))


class ArgumentStream:
    """Arguments that arrive as JSON text: objects are streamed, other values are buffered until complete."""

    def __init__(self, sink: CallSink, name: str) -> None:
        self._sink = sink
        self._name = name
        self._pending: list[str] | None = None
        self._has_started = False

    def write(self, text: str) -> None:
        """Add text of the value."""
        if not self._has_started and text:
            self._has_started = True
            if text[0] != "{":
                self._pending = []
        if self._pending is None:
            self._sink.write(text)
        else:
            self._pending.append(text)

    def end(self) -> None:
        """Complete the value."""
        if self._pending is not None:
            self._sink.write(self._sink.as_object(self._name, json.loads("".join(self._pending))))


def pour(parser: LenientJson, stream: ArgumentStream) -> None:
    """Pass on the parser's output."""
    for fragment in parser.take():
        stream.write(fragment.text)


def _bare(name: str) -> str:
    return name.strip().strip("\"'`")


def _fold(name: str) -> str:
    """Normalize a name that models misspell: case, a namespace prefix, dashes instead of underscores."""
    return _bare(name).removeprefix(_NAMESPACE).replace("-", "_").casefold()


def _canonical(arguments: str) -> str:
    """JSON without layout and member order."""
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments


class FurtherCalls:
    """Filters calls after the first one if the model must call: passes on each that is complete and new.

    Only calls may follow a forced call, so a weak model repeats the same one until the token limit.
    """

    def __init__(self) -> None:
        self.held: list[AnswerEvent] = []
        self._name = ""
        self._text: list[str] = []
        self._seen: set[tuple[str, str]] = set()

    def feed(self, event: CallStarted | CallArguments | CallEnded, *, first: bool) -> list[AnswerEvent] | None:
        """The events to pass on now; None if the call repeats an earlier one."""
        if isinstance(event, CallStarted):
            self._name, self._text = event.name, []
        elif isinstance(event, CallArguments):
            self._text.append(event.delta)
        else:
            call = self._name, _canonical("".join(self._text))
            if call in self._seen:
                return None
            self._seen.add(call)
        if first:
            return [event]
        self.held.append(event)
        if not isinstance(event, CallEnded):
            return []
        whole, self.held = self.held, []
        return whole
