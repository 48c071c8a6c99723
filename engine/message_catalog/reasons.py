"""Decisions and their reasons as facts: a kind and its values. engine.message_catalog has the sentences."""

from dataclasses import dataclass, field

from msgspec import UNSET, UnsetType


@dataclass(frozen=True, slots=True)
class Reason:
    """One fact of a decision. `kind` names its sentence, `values` fill its fields and may be reasons.

    `text` is the sentence in English if the fact came from a server.
    """

    kind: str
    values: dict[str, "str | int | float | Reason | tuple[str | Reason, ...] | None"] = field(default_factory=dict)
    text: str | UnsetType = field(default=UNSET, compare=False, repr=False)

    def __str__(self) -> str:
        from engine.message_catalog import sentence

        return sentence(self)


def because(kind: str, /, **values: "str | float | Reason | tuple[str | Reason, ...] | None") -> Reason:
    """Create the reason of this kind with these values."""
    return Reason(kind, dict(values))
