"""Tooltips are text, whatever a model, a file or a server named: HTML would load the pictures that it names."""

import ast
from pathlib import Path

import pytest
from PySide6.QtGui import Qt

from app.gui.formatted import plain_tip

ROOT = Path(__file__).resolve().parents[2]
# Calls whose result is a text of the window, or was made a plain one.
_SAFE = {"tr", "_tr", "plain_tip"}


@pytest.mark.parametrize(
    "text",
    [
        "<img src='file:///home/me/picture.png'>",
        "<b>bold</b>",
        " <p>",
        "<!DOCTYPE html><img src=//server/share>",
        "<?xml version='1.0'?><p>text</p>",
        "&lt;b&gt; <img src=x>",
    ],
)
def test_what_looks_like_html_stays_text(text):
    assert Qt.mightBeRichText(text)
    assert not Qt.mightBeRichText(plain_tip(text))
    assert plain_tip(text).replace("\u2060", "") == text


def tips(tree):
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            shows = ast.unparse(call.func) == "QToolTip.showText"
            if call.func.attr == "setToolTip":
                yield call.args[-1]
            elif shows or (call.func.attr == "setItemData" and "ToolTipRole" in ast.unparse(call)):
                yield call.args[1]


def is_safe(tip):
    if isinstance(tip, ast.IfExp):
        return is_safe(tip.body) and is_safe(tip.orelse)
    if isinstance(tip, ast.Call):
        return (tip.func.attr if isinstance(tip.func, ast.Attribute) else ast.unparse(tip.func)) in _SAFE
    return isinstance(tip, ast.Constant)


def test_every_tooltip_is_a_text_of_the_window_or_made_plain():
    found = [
        (path.relative_to(ROOT), tip)
        for path in (ROOT / "app" / "gui").rglob("*.py")
        for tip in tips(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert [f"{path}:{tip.lineno}: {ast.unparse(tip)}" for path, tip in found if not is_safe(tip)] == []
    assert len(found) > 30
