"""Every text of the window that a translation must contain."""

import ast
import json
from functools import cache
from pathlib import Path

from app.code.integrations.mcp_texts import MCP_PROGRAMS
from app.code.integrations.registry import INTEGRATIONS
from app.gui.chat.option_fields import KNOBS
from app.gui.devices.facts import BACKENDS, KINDS, PARTS
from app.gui.devices.page import _STATES
from app.gui.formatted import JOBS, source
from app.gui.job_card import _QUANTIZE_STEPS
from app.gui.library.hub_tab import _SIZES, _SORTS, _TASKS
from app.gui.library.model_card import _CAN
from app.gui.quantize.loss_chips import _LOSS_WORDS
from app.gui.quantize.page import _CACHE_NAMES, _GATES, _TEXTS, _TIERS
from app.gui.quantize.report import _MEASURES
from app.gui.reasons import PLAIN_TEXTS, SYSTEM_TEXTS
from app.gui.server.page import SNIPPETS
from app.gui.settings_page import _AT_ZERO, _CHOICES
from app.gui.shortcuts import SHORTCUTS
from app.settings import SETTINGS
from app.suggestions import FOR_A_MODEL, FOR_THE_TOY
from devices import fault_rules, first_look, types
from devices.probes import fix_hints
from engine.api.jobs import JobKind
from engine.message_catalog import CHECKS, TEMPLATES
from quantize.job.report import GRIDS
from quantize.kv_cache_types import CACHE_TYPES

ROOT = Path(__file__).resolve().parents[2]
CALLS = {"tr": 0, "_tr": 0, "translate": 1}


def written():
    """Texts that are translated where they are written."""
    found = set()
    for path in (*(ROOT / "app" / "gui").rglob("*.py"), ROOT / "app" / "generation_phase.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            place = CALLS.get(name)
            if place is not None and len(node.args) > place:
                found |= {
                    part.value
                    for part in ast.walk(node.args[place])
                    if isinstance(part, ast.Constant) and isinstance(part.value, str)
                }
    return found


def plain_texts(module):
    """Its constant texts, in tables too."""
    told = [value for name, value in vars(module).items() if name.lstrip("_").isupper()]
    return {text for value in told for text in (value.values() if isinstance(value, dict) else (value,))}


def tables():
    """Texts of tables, which are translated by name."""
    found = {text for row in SETTINGS for text in (row.title, row.description, row.group)}
    # Languages have their own names.
    choices = {name for row in SETTINGS for name in row.choices if len(name) > 2} - CACHE_TYPES.keys()
    found |= {_CHOICES.get(name, name.capitalize()) for name in choices}
    found |= set(_AT_ZERO.values())
    found |= {text for knob in KNOBS for text in (knob.title, knob.description, knob.group)}
    found |= {*KINDS.values(), *PARTS.values(), *_CAN.values(), *(words for words, _ in _STATES.values())}
    found |= {text for _, name, words in (*_TIERS, *_GATES, *_TEXTS) for text in (name, words)}
    found |= {words for _, words, _ in _LOSS_WORDS} | {"large"}
    found |= {words for words, _ in _MEASURES} | {step[0] for step in _QUANTIZE_STEPS}
    found |= {words for table in (_SIZES, _SORTS, _TASKS) for _, words in table}
    found |= {shortcut.words for shortcut in SHORTCUTS} | {item.question for item in (*FOR_A_MODEL, *FOR_THE_TOY)}
    found |= {*BACKENDS.values(), *JOBS.values()}
    found |= {kind.title for kind in JobKind} | set(_CACHE_NAMES.values()) | {item.hint for item in SNIPPETS}
    found |= {source(name) for name in ("", "user", "file", "generation_config", "model_card", "llama.cpp")}
    found |= {template for kind, template in TEMPLATES.items() if kind not in CHECKS}  # only the terminal's
    found |= set(GRIDS.values()) | json.loads(PLAIN_TEXTS.read_text("utf-8")).keys()
    found |= {rule.title for rule in fault_rules.parse(fault_rules.SHIPPED.read_bytes()).rules}
    found |= {*plain_texts(types), *plain_texts(fix_hints), *SYSTEM_TEXTS}
    found |= {first_look.NONE_FOUND, first_look.NONE_IN_CONTAINER, first_look.UNUSED, first_look.USED}
    found |= {first_look.USED_WITH_UNITS, first_look.MATRIX_UNITS, first_look.INTEGER_DOT_PRODUCTS}
    # Others are commands and addresses.
    found |= {item.where for item in MCP_PROGRAMS} | {MCP_PROGRAMS[-1].name}  # the others are names
    found |= {item.install for item in INTEGRATIONS.values() if item.install.startswith(("install ", "add "))}
    found |= {"unknown", "{n} s", "{n} min", "{h} h {m} min"}  # app.format's
    return found


@cache
def every_text():
    """All of them."""
    return {text for text in written() | tables() if any(letter.isalpha() for letter in text)}
