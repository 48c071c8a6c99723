"""The dialects this engine reads, in the order in which templates are compared with them."""

from typing import Final

import msgspec

from engine.chat.reasoning import MARKERS
from engine.chat.tools.dialect import Dialect
from engine.chat.tools.family_dialects import OF_FAMILIES
from engine.chat.tools.shared_dialects import GENERIC, SHARED

DIALECTS: Final = (*OF_FAMILIES, *SHARED)

# Not chosen by a template but by name: what a model card or a user says.
BY_NAME: Final = {dialect.name: dialect for dialect in (GENERIC, *reversed(DIALECTS))}


def choose(template: str | None) -> Dialect:
    """The first dialect whose marks the template carries; the generic one if none fits.

    A template may mark reasoning although its family does not: a model of that family was taught to reason.
    """
    if template is None:
        return GENERIC
    dialect = next((d for d in DIALECTS if _fits(d, template)), GENERIC)
    if dialect.reasoning is None and dialect.headers is None:
        marks = next((markers for markers in MARKERS if markers.end in template), None)
        if marks is not None:
            return msgspec.structs.replace(dialect, reasoning=marks, breaks_reasoning=True)
    return dialect


def _fits(dialect: Dialect, template: str) -> bool:
    return all(mark in template for mark in dialect.needs) and not any(mark in template for mark in dialect.lacks)
