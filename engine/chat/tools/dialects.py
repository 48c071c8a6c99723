"""The dialects this engine reads, in the order in which templates are compared with them."""

from typing import Final

from engine.chat.tools.dialect import Dialect
from engine.chat.tools.family_dialects import OF_FAMILIES
from engine.chat.tools.shared_dialects import GENERIC, SHARED

DIALECTS: Final = (*OF_FAMILIES, *SHARED)

# Not chosen by a template but by name: what a model card or a user says.
BY_NAME: Final = {dialect.name: dialect for dialect in (GENERIC, *reversed(DIALECTS))}


def choose(template: str | None) -> Dialect:
    """The first dialect whose marks the template carries; the generic one if none fits."""
    if template is not None:
        for dialect in DIALECTS:
            has = all(mark in template for mark in dialect.needs)
            if has and not any(mark in template for mark in dialect.lacks):
                return dialect
    return GENERIC
