"""Names and sources of collections. This is the only part that cannot be rebuilt from the files."""

import contextlib
import secrets
import shutil
import threading
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from filelock import FileLock, Timeout

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
# A removed collection can be restored for this long, while the process runs that removed it.
KEPT_REMOVED_S: Final = 600.0
# Start of the names of facts that are the attributes of a vector store's file; its id follows.
ATTRIBUTES: Final = "attributes:"
_REMOVED: Final = ".removed"  # ends the name of its folder


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

    def without_file(self, file_id: str) -> "CollectionConfig":
        """This vector store without an uploaded file and its attributes."""
        return msgspec.structs.replace(
            self,
            sources=tuple(source for source in self.sources if Path(source).parent.name != file_id),
            facts={name: value for name, value in self.facts.items() if name != f"{ATTRIBUTES}{file_id}"},
        )


def _folded(name: str) -> str:
    """The form in which names are compared. macOS writes "ü" as two characters."""
    return unicodedata.normalize("NFC", name).casefold()


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
        config = config or next((d for d in every if d.is_named and _folded(d.name) == _folded(key)), None)
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
            if prefix == NAMED and any(d.is_named and _folded(d.name) == _folded(name) for d in every):
                raise InputFault(because("collection_there", name=name), "name")
            new_id = f"{prefix}_{secrets.token_hex(ID_BYTES)}"
            config = msgspec.convert(
                {"id": new_id, "name": name, "created_at": time.time(), **fields}, learned(CollectionConfig)
            )
            self._store.put((*every, config))
            return config

    def restore(self, config: CollectionConfig) -> None:
        """Put a removed configuration back. Raises: InputFault: its name was taken meanwhile."""
        with self._store.locked():
            every = self.all()
            if config.is_named and any(d.is_named and _folded(d.name) == _folded(config.name) for d in every):
                raise InputFault(because("collection_there", name=config.name), "name")
            self._store.put((*every, config))

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


def writer_lock(folder: Path) -> FileLock:
    """The lock of the process that keeps the index in `folder` up to date."""
    return FileLock(str(folder / "writer.lock"), thread_local=False)


def is_in_use(folder: Path) -> bool:
    """Return whether a process keeps the index in `folder` up to date."""
    lock = writer_lock(folder)
    try:
        lock.acquire(timeout=0)
    except (Timeout, OSError):
        return True
    lock.release()
    return False


class RemovedCollections:
    """Collections that were just removed, with their indexes. Thread-safe. Forgotten when the process ends."""

    def __init__(self, folder: Path) -> None:
        """`folder` has the folders of all indexes."""
        self._folder = folder
        self._removed: dict[str, tuple[CollectionConfig, float]] = {}  # by id, with the time of removal
        self._lock = threading.Lock()

    def keep(self, config: CollectionConfig) -> None:
        """Put the closed index of a removed collection aside."""
        with self._lock, contextlib.suppress(OSError):  # without its index, its files are read again
            self._removed[config.id] = (config, time.monotonic())
            (self._folder / config.id).rename(self._folder / f"{config.id}{_REMOVED}")

    def restore(self, key: str, definitions: Definitions) -> None:
        """Put a collection and its index back. Raises: NoCollection, InputFault: its name was taken meanwhile."""
        with self._lock:
            if key not in self._removed:
                raise NoCollection(key)
            aside, folder = self._folder / f"{key}{_REMOVED}", self._folder / key
            with contextlib.suppress(OSError):  # first: once it is listed, a missing index is built again
                aside.rename(folder)
            try:
                definitions.restore(self._removed[key][0])
            except (InputFault, OSError):
                with contextlib.suppress(OSError):
                    folder.rename(aside)
                raise
            del self._removed[key]

    def delete_old(self, older_s: float | None = None) -> None:
        """Delete what was removed before `KEPT_REMOVED_S`, or before this time."""
        limit_s = KEPT_REMOVED_S if older_s is None else older_s
        with self._lock:
            for key in [key for key, (_, at) in self._removed.items() if time.monotonic() - at >= limit_s]:
                del self._removed[key]
                shutil.rmtree(self._folder / f"{key}{_REMOVED}", ignore_errors=True)

    def delete_left(self, defined: Callable[[], set[str]]) -> None:
        """Delete indexes of removed collections that a process did not delete before it was killed.

        `defined` returns the ids of all collections. If there are none, the list may be damaged, so only indexes
        that were put aside are deleted.
        """
        with contextlib.suppress(OSError):
            folders = list(self._folder.iterdir())
            ids = defined()  # after the folders: a new collection is defined before it has one
            for folder in folders:
                is_lost = bool(ids) and folder.name not in ids and not is_in_use(folder)
                if is_lost or folder.name.endswith(_REMOVED):
                    shutil.rmtree(folder, ignore_errors=True)
