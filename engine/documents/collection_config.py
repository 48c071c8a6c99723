"""Names and sources of collections. This is the only part that cannot be rebuilt from the files."""

import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from devices.msgspec_lock import learned
from engine.core.errors import InputFault
from engine.core.json_store import JsonStore
from engine.documents.errors import NoCollection
from engine.message_catalog.reasons import because

ID_BYTES: Final = 12
# Start of the ids of collections that the user named.
NAMED: Final = "col"
MAX_NAME: Final = 120
# Vector stores are collections, too. Each change rewrites the whole list.
MAX_COLLECTIONS: Final = 5000
MAX_OF_A_KEY: Final = 1000


class CollectionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration of a collection. Sources are absolute paths of files and folders.

    If `open` is set, every client with chat access may query it, else only the user's own programs.
    `embedding_model` and `reranker` are model ids; "" lets the server choose a local one, "none" disables it.
    `agreed` maps models on other servers to the server URL to which the user agreed to send the collection's text.
    `facts` are a client's own metadata (OpenAI's `metadata`). `owner` created a vector store through the API.
    """

    id: str
    name: str
    sources: tuple[str, ...] = ()
    follow: bool = True
    ocr: bool = False
    open: bool = False
    embedding_model: str = ""
    reranker: str = ""
    agreed: dict[str, str] = {}
    created_at: float = 0.0
    facts: dict[str, str] = {}
    owner: str = ""

    @property
    def is_named(self) -> bool:
        """True if the user created it with a name, False if a client created it as a vector store."""
        return self.id.startswith(f"{NAMED}_")


class Definitions:
    """All collections of this user. Thread-safe; reads the changes of other processes."""

    def __init__(self, path: Path) -> None:
        self._store: JsonStore[tuple[CollectionConfig, ...]] = JsonStore(
            path, tuple[CollectionConfig, ...], tuple, private=True
        )

    def all(self) -> tuple[CollectionConfig, ...]:
        """All configurations, oldest first."""
        return self._store.get()

    def get(self, key: str) -> CollectionConfig:
        """The configuration by id, else by case-insensitive name; vector stores have no unique name.

        Raises: NoCollection.
        """
        every = self.all()
        config = next((d for d in every if d.id == key), None)
        config = config or next((d for d in every if d.is_named and d.name.casefold() == key.casefold()), None)
        if config is None:
            raise NoCollection(key, tuple(d.name for d in every if not d.open))
        return config

    def add(self, name: str, prefix: str = NAMED, **fields: object) -> CollectionConfig:
        """Add a collection. Raises: InputFault: the name is empty, too long or taken."""
        name = " ".join(name.split())
        if not name or len(name) > MAX_NAME:
            raise InputFault(because("collection_name", most=MAX_NAME), "name")
        with self._store.locked():
            every = self.all()
            owner = fields.get("owner")
            of_the_key = sum(d.owner == owner for d in every) if owner else 0
            if len(every) >= MAX_COLLECTIONS or of_the_key >= MAX_OF_A_KEY:
                most = MAX_OF_A_KEY if of_the_key >= MAX_OF_A_KEY else MAX_COLLECTIONS
                raise InputFault(because("too_many_collections", most=most), "name")
            if prefix == NAMED and any(d.is_named and d.name.casefold() == name.casefold() for d in every):
                raise InputFault(because("collection_there", name=name), "name")
            new_id = f"{prefix}_{secrets.token_hex(ID_BYTES)}"
            config = msgspec.convert(
                {"id": new_id, "name": name, "created_at": time.time(), **fields}, learned(CollectionConfig)
            )
            self._store.put((*every, config))
            return config

    def change(self, key: str, change: Callable[[CollectionConfig], CollectionConfig]) -> CollectionConfig:
        """Replace a configuration. Raises: NoCollection."""
        with self._store.locked():
            old = self.get(key)
            new = change(old)
            self._store.put(tuple(new if d.id == old.id else d for d in self.all()))
            return new

    def remove(self, key: str) -> CollectionConfig:
        """Remove a configuration and return it. Raises: NoCollection."""
        with self._store.locked():
            old = self.get(key)
            self._store.put(tuple(d for d in self.all() if d.id != old.id))
            return old
