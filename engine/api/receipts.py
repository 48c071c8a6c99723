"""Receipts of deterministic responses, and the results of replaying them."""

from typing import Any, Literal

import msgspec

# Increase this when the format of a receipt changes.
VERSION = 1


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the same request gives the same tokens while `fingerprint` is unchanged, and the reasons if not."""

    promised: bool
    because: tuple[str, ...] = ()
    fingerprint: str = ""


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a response depends on besides its request, as SHA-256 of the content or as a name."""

    file: str
    template: str
    plan: str
    adapters: str
    engine: str
    kernels: str
    driver: str
    device: str


class TextDigest(msgspec.Struct, frozen=True, kw_only=True):
    """Length in characters and SHA-256 of the raw generated text, before reasoning and tool calls are parsed."""

    num_chars: int
    sha256: str


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The origin of a response.

    `asked` is the request to the model in the fields of /v1/completions. Every field is set and the prompt is token
    ids. `format` has what those fields cannot express. `route` and `body` are the request as the client sent it.
    `plan` has the load settings that affect the output bits.
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
    """Replay a receipt. `explain` also finds which of the changes causes the difference.

    `model` replaces the receipt's model. `old_model` is tried as the original file.
    """

    receipt: Receipt
    explain: bool = False
    model: str = ""
    old_model: str = ""


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """One part that has changed. `same`: the old part alone restores the old text; None: not tried."""

    part: str
    then: str
    now: str
    same: bool | None = None
    reason: str = ""


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a replay. `same` is True if the text equals the receipt's text bit for bit.

    `changed` lists the parts that have changed. With `explain`, `same` is about the request repeated with all
    current parts, and `exchanged` has one entry per change.
    """

    text: str
    same: bool
    changed: tuple[str, ...] = ()
    exchanged: tuple[Exchange, ...] = ()
