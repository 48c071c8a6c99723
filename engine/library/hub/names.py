"""What a person may write to name something on a hub."""

import re
from urllib.parse import unquote, urlsplit

import msgspec

from engine.core.errors import InputFault
from engine.message_catalog.reasons import because

_REPO = re.compile(r"(?P<repo>[^/:\s]+/[^/:\s]+)(?:/(?P<file>[^:]+))?(?::(?P<label>[^/:]+))?")
_URL_FILE = re.compile(
    r"/(?P<repo>[^/]+/[^/]+)(?:/(?:resolve|blob|tree|raw)/(?P<revision>[^/]+)(?:/(?P<file>.+))?)?/?"
)


class HubName(msgspec.Struct, frozen=True):
    """A repository and, if named, one of its quantizations or files at a revision."""

    repo: str
    label: str | None = None
    file: str | None = None
    revision: str | None = None


def parse_hub_name(text: str) -> HubName:
    """`owner/name`, `owner/name:Q4_K_M`, `owner/name/file.gguf`, or the address of a repository or a file.

    Raises: InputFault: it is none of these.
    """
    text = text.strip()
    if "://" in text:
        match = _URL_FILE.fullmatch(unquote(urlsplit(text).path))
        if match:
            return HubName(match["repo"], file=match["file"], revision=match["revision"])
    elif match := _REPO.fullmatch(text.removeprefix("hf.co/").removeprefix("huggingface.co/")):
        return HubName(match["repo"], match["label"], match["file"])
    raise InputFault(because("names_no_repository", text=text[:120]), "model")
