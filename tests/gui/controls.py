"""The window's controls as named in its code, and those that the walks press."""

import ast
import re
from functools import cache
from pathlib import Path

from app.code.integrations.registry import INTEGRATIONS
from app.gui.chat.option_fields import KNOBS
from app.settings import SETTINGS

TESTS = Path(__file__).resolve().parent
WINDOW = TESTS.parents[1] / "app" / "gui"
# Functions that create a control or name one, and the position of the text among their arguments.
MAKERS = {
    "button": (0,),
    "_button": (0,),
    "ComboBox": (0,),
    "IconButton": (2,),
    "_tool": (1,),
    "QCheckBox": (0,),
    "addAction": (0, 1),
    "addTab": (1,),
    "add": (0, 1),
    "Empty": (2,),
    "set_words": (0, 1),
    "search_field": (1,),
    "setAccessibleName": (0,),
    "notify": (2, 3, 4),
}
# Functions that press a control in a walk; one of their texts is the control's.
PRESSES = {"click", "hover", "choose", "fill", "menu", "more", "command", "tick"}


@cache
def controls():
    """(module, text) of all controls; `{…}` is a placeholder."""
    found = set()
    for path in sorted(WINDOW.rglob("*.py")):
        where = path.relative_to(WINDOW).as_posix()
        for call in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(call, ast.Call):
                places = MAKERS.get(_name(call), ())
                texts = [call.args[place] for place in places if place < len(call.args)]
                texts += [keyword.value for keyword in call.keywords if places and keyword.arg == "name"]
                found |= {(where, words) for text in texts for words in _translated(text)}
    found |= {("settings_page.py", row.title) for row in SETTINGS if row.group}
    found |= {("chat/option_fields.py", knob.title) for knob in KNOBS}
    named = {f"Connect {program.title}" for program in INTEGRATIONS.values()}
    found |= {("connect/page.py", words) for words in named}
    found.discard(("connect/page.py", "Connect {name}"))
    # A button's text and its name for screen readers are one control.
    return {
        (where, words)
        for where, words in found
        if not any(where == other and longer.startswith(f"{words} {{") for other, longer in found)
    }


@cache
def presses():
    """Texts of pressed controls, by the name of the walk's module; `{}` is a placeholder."""
    found = {}
    for path in sorted((TESTS / "walk").glob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        meant = {}  # possible values of a name: assigned ones, or those of a loop
        for node in ast.walk(tree):
            if isinstance(node, ast.For | ast.comprehension):
                pairs = [(node.target, node.iter)]
            elif isinstance(node, ast.Assign):
                pairs = [(target, node.value) for target in node.targets]
            else:
                continue
            for target, source in pairs:
                for name in ast.walk(target):
                    if isinstance(name, ast.Name):
                        meant.setdefault(name.id, []).append(source)
        found[path.stem] = {
            words
            for call in ast.walk(tree)
            if isinstance(call, ast.Call) and _name(call) in PRESSES
            for argument in call.args
            for words in _words(argument, meant)
        }
    return found


def is_pressed(words, pressed):
    """Whether one of these presses is of the control with that text."""
    pattern = re.compile(re.sub(r"\\{.*?\\}|%1", ".+", re.escape(words)))
    return any(pattern.fullmatch(each) for each in pressed)


def _name(call):
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def _translated(node):
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and _name(call) in {"tr", "_tr", "translate"}:
            for part in ast.walk(call):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.value


def _words(node, meant, depth=3):
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
    elif isinstance(node, ast.Name):
        for source in meant.get(node.id, ()) if depth else ():
            yield from _words(source, meant, depth - 1)
    else:
        for part in ast.iter_child_nodes(node):
            yield from _words(part, meant, depth)
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.value.strip("'\"") + "{}"  # the beginning of a concatenated text
