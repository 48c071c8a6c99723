"""Suggested first prompts, each with a pattern for a correct answer; a test checks the shipped defaults."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class Suggestion:
    """A prompt, and a case-insensitive pattern that every correct answer matches."""

    question: str
    fact: str


FOR_A_MODEL = (
    Suggestion("What is photosynthesis?", r"(?s)(?=.*plant)(?=.*(light|sun|carbon dioxide|co₂|co2))"),
    Suggestion("What does the heart do?", r"blood"),
    Suggestion("Why do we need sleep?", r"health|energy|rest|surviv"),
)
FOR_THE_TOY = (Suggestion("What is quantization?", r"bits"),)


# Placeholders in a saved prompt: {{topic}} is filled in by the user; {{date}}, {{time}} and {{model}}
# automatically.

_VARIABLE = re.compile(r"\{\{\s*([\w][\w \-]{0,59})\s*\}\}")
OWN = ("date", "time", "model")


def asked_for(text: str) -> list[str]:
    """Names of the placeholders that the user must fill in, in order of appearance."""
    names = dict.fromkeys(match[1].strip() for match in _VARIABLE.finditer(text))
    return [name for name in names if name not in OWN]


def filled(text: str, values: Mapping[str, str], model: str = "", now: datetime | None = None) -> str:
    """Replace all placeholders that have a value; others stay unchanged."""
    moment = now or datetime.now().astimezone()
    defined = {"date": moment.strftime("%Y-%m-%d"), "time": moment.strftime("%H:%M"), "model": model, **values}
    return _VARIABLE.sub(lambda match: defined.get(match[1].strip(), match[0]), text)
