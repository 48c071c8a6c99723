"""The window of a marathon: opens pages and asks questions by itself, and prints the delay of its event loop.

Started by marathon.py with TESSERA_HOME, a display and a running server. Prints one line per second: `late
SECONDS`.
"""

import os
import random
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QApplication

from app.db.store import open_or_memory
from app.gui.application import Desktop
from app.gui.server_link import ServerLink
from engine.core.paths import user_paths

PAGES = ("chat", "library", "devices", "dashboard", "connect", "server", "settings", "fit", "chat", "chat")
QUESTIONS = ("What is a tensor?", "Write a list of four words.", "Why is the sky blue?", "Say hello in `code`.")


def main():
    rng = random.Random(int(os.environ.get("MARATHON_SEED", "1")))
    app = QApplication(["tessera"])
    store, _ = open_or_memory(user_paths().state / "chats.db")
    desktop = Desktop(app, store, ServerLink())
    window = desktop.window
    window.resize(1180, 780)
    desktop.start()
    due = [time.monotonic() + 1]

    def beat():
        print(f"late {max(0.0, time.monotonic() - due[0]):.2f}", flush=True)
        due[0] = time.monotonic() + 1

    def act():
        window.show_page(rng.choice(PAGES))
        chat = window.chat
        if rng.random() < 0.3 and not chat.controller.busy and chat.composer.ready:
            if rng.random() < 0.2:
                chat.new_chat()
            chat.controller.change(sampling={"max_tokens": 24})
            chat.composer.set_text(rng.choice(QUESTIONS))
            chat.composer.send()

    beats, acts = QTimer(), QTimer()
    beats.timeout.connect(beat)
    acts.timeout.connect(act)
    beats.start(1000)
    acts.start(4000)
    app.exec()


main()
