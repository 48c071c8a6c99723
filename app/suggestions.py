"""Questions to begin with, each with what a right answer says: a test asks them with the shipped defaults."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class Suggestion:
    """A question, and a pattern (case ignored) that every right answer matches."""

    question: str
    fact: str


FOR_A_MODEL = (
    Suggestion("What is photosynthesis?", r"(?s)(?=.*plant)(?=.*(light|sun|carbon dioxide|co₂|co2))"),
    Suggestion("What does the heart do?", r"blood"),
    Suggestion("Why do we need sleep?", r"health|energy|rest|surviv"),
)
FOR_THE_TOY = (Suggestion("What is quantization?", r"bits"),)


# Places to fill in within a saved prompt: {{topic}}, and some that are known: {{date}}, {{time}}, {{model}}.

_VARIABLE = re.compile(r"\{\{\s*([\w][\w \-]{0,59})\s*\}\}")
OWN = ("date", "time", "model")


def asked_for(text: str) -> list[str]:
    """The names a person has to fill in, in the order of the text."""
    found = dict.fromkeys(match[1].strip() for match in _VARIABLE.finditer(text))
    return [name for name in found if name not in OWN]


def filled(text: str, values: Mapping[str, str], model: str = "", now: datetime | None = None) -> str:
    """The text with every known place filled; what nobody knows stays as it is written."""
    moment = now or datetime.now().astimezone()
    defined = {"date": moment.strftime("%Y-%m-%d"), "time": moment.strftime("%H:%M"), "model": model, **values}
    return _VARIABLE.sub(lambda match: defined.get(match[1].strip(), match[0]), text)
