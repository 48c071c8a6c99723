"""The field's words: names that stood for things with a standard name do not come back (docs/glossary.md)."""

import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# A part of a name between underscores or capitals, and what it is called instead.
BANNED = {
    "acquit": "clear",
    "bury": "on_exit",
    "convict": "isolate",
    "craft": "gptq",
    "crafted": "gptq",
    "desk": "service",
    "guilty": "offending",
    "guesser": "drafter",
    "hope": "prior",
    "hopes": "priors",
    "hungry": "starved",
    "honoured": "unsupported parameter",
    "ladder": "fallbacks",
    "rung": "fallback",
    "spoils": "invalidates",
    "stake": "budget",
    "waste": "rejected",
    "winnings": "accepted",
    "wish": "overrides",
    "wishes": "overrides",
    "workshop": "bench service",
}
# Whole names, whose parts are innocent.
BANNED_NAMES = {
    "CancelledCheck": "CancelCheck: Cancelled is the exception",
    "GiveUp": "FitOption",
    "give_ups": "fit_options",
    "in_words": "error_message, phase_text",
    "judge_for": "fit_estimator",
    "Look": "Theme",
    "pass_by": "skip",
    "within_reason": "cap_kv_cells",
}
_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


@pytest.mark.parametrize("package", ["app", "devices", "engine", "quantize"])
def test_names_are_the_fields_own(package):
    found = []
    for path in (ROOT / package).rglob("*.py"):
        with path.open("rb") as file:
            names = {t.string for t in tokenize.tokenize(file.readline) if t.type == tokenize.NAME}
        for name in names:
            parts = {p.lower() for p in _PARTS.findall(name)} & BANNED.keys()
            standard = [BANNED[part] for part in parts]
            if name in BANNED_NAMES:
                standard.append(BANNED_NAMES[name])
            found += [f"{path.relative_to(ROOT)}: {name}: say {word}" for word in standard]
    assert found == []
