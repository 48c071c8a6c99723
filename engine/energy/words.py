"""How energy is told, and that it is not."""

from typing import Final

NO_METER: Final = "not measured: no meter here"
NOT_YET: Final = "not measured yet"


def energy_words(tokens_per_joule: float | None, *, metered: bool) -> str:
    """One line for a dispatch card or a table."""
    if tokens_per_joule is not None:
        return f"{tokens_per_joule:.3g} tokens per joule measured here, beyond the computer's rest"
    return f"energy {NOT_YET if metered else NO_METER}"
