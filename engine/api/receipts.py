"""Receipts of deterministic answers, and what replaying one finds."""

from typing import Any, Literal

import msgspec

# Raised when the form of a receipt changes.
VERSION = 1


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the same request gives the same tokens while `fingerprint` is the same; if not, why not."""

    promised: bool
    because: tuple[str, ...] = ()
    fingerprint: str = ""


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """All that an answer depends on beside its request, as SHA-256 of the content or by name."""

    file: str
    template: str
    plan: str
    adapters: str
    engine: str
    kernels: str
    driver: str
    device: str


class TextDigest(msgspec.Struct, frozen=True, kw_only=True):
    """The text of an answer before reasoning and calls are read from it: characters and their SHA-256."""

    num_chars: int
    sha256: str


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer came from.

    `asked` is what the model was asked, in the words of /v1/completions, every field given, the prompt as ids, and
    `format` what those have no words for. `route` and `body` are the request as the client sent it, `plan` the
    settings of the load that decide about bits.
    """

    version: int = VERSION
    model: str
    parts: Parts
    plan: dict[str, Any]
    asked: dict[str, Any]
    format: dict[str, Any] = {}
    route: Literal["chat", "completions"]
    body: dict[str, Any]
    answer: TextDigest


class ReplayRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Run a receipt again; `explain`: also find what of all that changed since makes the difference.

    `model` runs in place of the receipt's own, `old_model` is tried as the file of then.
    """

    receipt: Receipt
    explain: bool = False
    model: str = ""
    old_model: str = ""


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """One part that is not as it was. `same`: with the old one alone the answer is the old one; None: not tried."""

    part: str
    then: str
    now: str
    same: bool | None = None
    reason: str = ""


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it. `same`: the text is that of the receipt, bit for bit.

    `changed` are the parts that are not as they were. With `explain` `same` speaks of the request asked again with
    all that is in force now, and `exchanged` has one entry for each change.
    """

    text: str
    same: bool
    changed: tuple[str, ...] = ()
    exchanged: tuple[Exchange, ...] = ()
