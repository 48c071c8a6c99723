"""Calls of tools that take free text, in the chunks of a chat completion."""

from engine.chat.conversation import AnswerFinished, ChatEvent
from engine.chat.events import CallArguments, CallEnded, CallStarted
from engine.server.custom_tools import custom_input
from engine.server.openai import stream


class CustomCalls:
    """One answer's. Their text is known when the JSON around it is complete, and told in one piece."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._held: dict[int, str] = {}

    def deltas(self, event: ChatEvent) -> list[bytes] | None:
        """What the chunks of this event hold; None where it is no such call's."""
        if isinstance(event, CallStarted) and event.name in self._names:
            self._held[event.index] = ""
            return [stream.custom_call(event.index, {"name": event.name, "input": ""}, event.id)]
        if isinstance(event, CallArguments) and event.index in self._held:
            self._held[event.index] += event.delta
            return []
        if isinstance(event, CallEnded) and event.index in self._held:
            return [self._end(event.index)]
        if isinstance(event, AnswerFinished):
            return [self._end(index) for index in tuple(self._held)]
        return None

    def _end(self, index: int) -> bytes:
        return stream.custom_call(index, {"input": custom_input(self._held.pop(index))})
