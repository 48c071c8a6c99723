"""Places to fill in within a saved prompt: {{topic}}, and some that are known: {{date}}, {{time}}, {{model}}."""

import re
from collections.abc import Mapping
from datetime import datetime

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
