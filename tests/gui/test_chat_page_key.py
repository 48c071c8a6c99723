"""The key of a link to the chat page: it never replaces a stored key silently."""

from pathlib import Path

import pytest
from PySide6.QtQml import QJSEngine

PAGE = Path(__file__).parents[2] / "engine" / "server" / "chat.html"
# The parts of a browser that the page's lines use.
BROWSER = """
var kept = {}, asked = [], confirms = %s;
if (%s) kept["tessera-chat-key"] = JSON.stringify(%s);
var localStorage = { getItem: (n) => (n in kept ? kept[n] : null), setItem: (n, v) => { kept[n] = v; } };
var location = { hash: %s, pathname: "/chat" };
var history = { replaceState: (state, title, path) => { location.hash = ""; } };
var confirm = (text) => { asked.push(text); return confirms; };
var URLSearchParams = function (text) {
  const pairs = text.split("&").map((pair) => pair.split("="));
  this.get = (name) => (pairs.find((pair) => pair[0] === name) || [name, null])[1];
};
var KEPT = "tessera-chat";
"""


@pytest.mark.parametrize(
    ("link", "stored", "confirms", "key", "questions"),
    [
        ("#key=new", None, False, "new", 0),
        ("#key=old", "old", False, "old", 0),
        ("#key=new", "old", False, "old", 1),
        ("#key=new", "old", True, "new", 1),
        ("", "old", False, "old", 0),
        ("#key=", "old", False, "old", 0),
    ],
)
def test_a_link_replaces_a_stored_key_only_after_a_question(qapp, link, stored, confirms, key, questions):
    page = PAGE.read_text("utf-8")
    lines = page[page.index("const read = ") : page.index("const headers = ")]
    lines = lines.replace("catch {", "catch (error) {")  # Qt's engine does not support the short form
    as_js = {None: "null", True: "true", False: "false"}
    stored_js = "null" if stored is None else f'"{stored}"'
    browser = BROWSER % (as_js[confirms], stored_js, stored_js, f'"{link}"')
    engine = QJSEngine()
    found = engine.evaluate(
        browser + lines + "; [key, JSON.parse(kept['tessera-chat-key']), asked.length, location.hash]"
    )
    assert not found.isError(), found.toString()
    assert [found.property(i).toVariant() for i in range(4)] == [
        key,
        key,
        questions,
        link if link == "#key=" else "",
    ]
