"""Helpers for questions and edits on the Code page, and for what it shows of them."""

import json

from PySide6.QtWidgets import QPushButton

ANSWER = """Louder it is.

greet.py
<<<<<<< SEARCH
    return "hello " + name
=======
    return "HELLO " + name
>>>>>>> REPLACE

other.py
<<<<<<< SEARCH
def unrelated():
=======
def related():
>>>>>>> REPLACE

gone.py
<<<<<<< SEARCH
nothing
=======
something
>>>>>>> REPLACE
"""
GREET = 'def greet(name):\n    return "hello " + name\n'
OTHER = "def unrelated():\n    return 1\n"


EDIT = (
    "edit",
    {"path": "greet.py", "search": '    return "hello " + name', "replace": '    return "HELLO" + name'},
)


TWO = """greet.py
<<<<<<< SEARCH
def greet(name):
=======
def greet(name: str) -> str:
>>>>>>> REPLACE

greet.py
<<<<<<< SEARCH
    return "hello " + name
=======
    return "HELLO " + name
>>>>>>> REPLACE

made.py
<<<<<<< SEARCH
=======
x = 1
>>>>>>> REPLACE
"""


def ask(page, qtbot, server, question, answer=ANSWER):
    server.pieces = [answer[i : i + 40] for i in range(0, len(answer), 40)]
    page.composer.set_text(question)
    with qtbot.waitSignal(page.controller.proposed):
        page.composer.send()


def as_call(number, name, arguments):
    return {"index": 0, "id": f"c{number}", "function": {"name": name, "arguments": json.dumps(arguments)}}


def work(page, qtbot, server, *turns):
    """Let the fake model make these calls, one per turn; then it answers with text."""
    waiting = list(turns)
    real = server._chat

    def chat(handler):
        server.tool_calls = [as_call(len(waiting), *waiting.pop(0))] if waiting else []
        server.pieces = [] if server.tool_calls else ["All done."]
        real(handler)

    server._chat = chat
    page.agent.setChecked(True)
    page.composer.set_text("Make it louder")
    page.composer.send()


def asked_again(page, qtbot, server, question, answer):
    """Send a question, and wait until the session with the answer is in the list."""
    before = [each.num_turns for each in page.history._sessions]
    ask(page, qtbot, server, question, answer)
    qtbot.waitUntil(lambda: [each.num_turns for each in page.history._sessions] != before)


def in_view(page):
    lines = page.files.source.toPlainText().splitlines()
    return [line.split("  ", 1)[0].strip() for line in lines if line]  # the line of an edit's buttons is empty


def pressed(page, name):
    (found,) = [b for b in page.files.findChildren(QPushButton) if b.accessibleName() == name and b.isVisible()]
    return found
