"""What was decided and why, as facts: a kind and the values that belong to it. engine.message_catalog has the sentences."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Reason:
    """One fact of a decision. `kind` names its sentence, `values` stand in it; a value may be a reason itself."""

    kind: str
    values: dict[str, "str | int | float | Reason | tuple[str | Reason, ...] | None"] = field(default_factory=dict)

    def __str__(self) -> str:
        from engine.message_catalog import sentence  # noqa: PLC0415 - the catalogue is made of reasons

        return sentence(self)


def because(kind: str, /, **values: "str | float | Reason | tuple[str | Reason, ...] | None") -> Reason:
    """The reason of this kind with these values."""
    return Reason(kind, dict(values))
