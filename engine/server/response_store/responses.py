"""Responses stored for `previous_response_id`, in memory only, to keep private text off the disk."""

from collections import OrderedDict
from sys import getsizeof
from typing import Any, Final

import msgspec

from engine.chat.types import Message
from engine.core.errors import InputFault
from engine.core.ownership import first_to_go, may_see, request_owner

MAX_RESPONSES: Final = 512
MAX_BYTES: Final = 64 << 20


class ResponseNotFound(InputFault):
    """No stored response has this id. Responses are lost when the server stops; the oldest are evicted earlier."""

    code = "response_not_found"

    def __init__(self, response_id: str, param: str | None = None) -> None:
        super().__init__(f"There is no stored response {response_id!r}.", param)
        self.response_id = response_id


class PreviousResponseNotFound(ResponseNotFound):
    """The request continues a response that is not stored; `store: true` stores one."""

    code = "previous_response_not_found"

    def __init__(self, response_id: str) -> None:
        super().__init__(response_id, "previous_response_id")


class ItemNotFound(ResponseNotFound):
    """A request refers to an item that is not stored."""

    code = "item_not_found"

    def __init__(self, item_id: str, param: str) -> None:
        InputFault.__init__(self, f"There is no stored item {item_id!r}; send the item itself.", param)
        self.item_id = item_id


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """One response as it was sent, its input items, and the conversation up to and including it."""

    response: dict[str, Any]
    input_items: list[dict[str, Any]]
    messages: tuple[Message, ...]
    size_bytes: int
    owner: str


class ResponseStore:
    """The latest responses within the limits."""

    def __init__(self) -> None:
        self._stored: OrderedDict[str, Stored] = OrderedDict()
        # items by id, with their responses: clients choose ids of input items, so several items may have one id
        self._items: dict[str, list[tuple[dict[str, Any], Stored]]] = {}
        self._bytes = 0

    def put(
        self, response: dict[str, Any], input_items: list[dict[str, Any]], messages: tuple[Message, ...]
    ) -> None:
        """Store a response for the request's owner. Beyond the limits, evict responses of the owner with most."""
        size = size_of((response, input_items, messages))
        stored = Stored(
            response=response,
            input_items=input_items,
            messages=messages,
            size_bytes=size,
            owner=request_owner.get(),
        )
        if (earlier := self._stored.pop(str(response["id"]), None)) is not None:
            self._let_go(earlier)
        self._stored[str(response["id"])] = stored
        self._bytes += size
        for item in _items(stored):
            self._items.setdefault(item["id"], []).append((item, stored))
        while len(self._stored) > MAX_RESPONSES or self._bytes > MAX_BYTES:
            self._let_go(self._stored.pop(first_to_go(self._stored, MAX_BYTES // MAX_RESPONSES)))

    def item(self, item_id: str, param: str) -> dict[str, Any]:
        """The newest input or output item with this id in the stored responses. Raises: ItemNotFound."""
        entries = self._items.get(item_id, [])
        for item, stored in entries[::-1]:
            if may_see(stored.owner):
                return item
        raise ItemNotFound(item_id, param)

    def meant(self, item: dict[str, Any], param: str) -> dict[str, Any]:
        """The stored item if `item` is only a reference, else `item`. Raises: ItemNotFound."""
        bare = item.get("type") is None and "role" not in item and "content" not in item
        if item.get("type") == "item_reference" or (bare and isinstance(item.get("id"), str)):
            return self.item(str(item.get("id")), f"{param}.id")
        return item

    def get(self, response_id: str) -> Stored:
        """The response with this id. Raises: ResponseNotFound."""
        stored = self._stored.get(response_id)
        if stored is None or not may_see(stored.owner):
            raise ResponseNotFound(response_id)
        return stored

    def previous(self, response_id: str) -> Stored:
        """The response that a conversation continues. Raises: PreviousResponseNotFound."""
        stored = self._stored.get(response_id)
        if stored is None or not may_see(stored.owner):
            raise PreviousResponseNotFound(response_id)
        return stored

    def remove(self, response_id: str) -> None:
        """Delete a response. Raises: ResponseNotFound."""
        self._let_go(self.get(response_id))
        del self._stored[response_id]

    def discard(self, response_id: str) -> None:
        if response_id in self._stored:
            self.remove(response_id)

    def _let_go(self, stored: Stored) -> None:
        self._bytes -= stored.size_bytes
        for item_id in {item["id"] for item in _items(stored)}:
            remaining = [entry for entry in self._items[item_id] if entry[1] is not stored]
            if remaining:
                self._items[item_id] = remaining
            else:
                del self._items[item_id]


def _items(stored: Stored) -> list[dict[str, Any]]:
    """Items that requests can refer to."""
    return [i for i in (*stored.response["output"], *stored.input_items) if isinstance(i.get("id"), str)]


# Python's overhead per value. Measured with tracemalloc: 36 (`{}`) to 98 (messages).
VALUE_BYTES: Final = 100


def size_of(value: Any) -> int:
    """Estimated bytes of a value in memory: its texts, and Python's overhead for each value in it.

    Its time depends on the number of values only: to encode 64 MB of text would block the event loop.
    """
    total, left = 0, [value]
    while left:
        each = left.pop()
        total += VALUE_BYTES
        if isinstance(each, str | bytes):
            total += len(each) if isinstance(each, bytes) or each.isascii() else getsizeof(each)
        elif isinstance(each, dict):
            total += sum(map(len, each))
            left.extend(each.values())
        elif isinstance(each, list | tuple):
            left.extend(each)
        elif isinstance(each, msgspec.Struct):
            left.extend(getattr(each, name) for name in each.__struct_fields__)
    return total
