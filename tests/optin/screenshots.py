"""Real screenshots of the pages that the documentation shows, into docs/screenshots/.

Run: python tests/optin/screenshots.py [--only chat,fit] [--styles light1,dark1,light2,dark2]. Starts Xvfb when
there is no display, and a real server with the installed models; needs no network. Each style runs in its own
process, because Qt reads its scale at start.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PySide6.QtWidgets import QDialog

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from app.suggestions import FOR_A_MODEL

OUT = ROOT / "docs" / "screenshots"
PAGES = (
    "first-run",
    "chat",
    "code",
    "documents",
    "library",
    "find",
    "fit",
    "devices",
    "power",
    "bench",
    "dashboard",
    "connect",
    "server",
    "settings",
    "shortcuts",
    "compare",
)
# Pages with a picture in the documentation; `--only` takes the others too.
SHOWN = (
    "first-run",
    "chat",
    "code",
    "documents",
    "library",
    "fit",
    "devices",
    "power",
    "bench",
    "connect",
    "server",
)
STYLES = (("light", 1), ("dark", 1), ("light", 2), ("dark", 2))
QUESTIONS = [suggestion.question for suggestion in FOR_A_MODEL[::2]]
WAIT_S = 240


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default=",".join(SHOWN))
    parser.add_argument("--styles", default="light1")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    if given.child:
        take(given.child[0], int(given.child[1]), given.only.split(","), given.out)
        return
    given.out.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "TESSERA_SERVER_PORT": "7411", "PYTHONPATH": str(ROOT)}
    xvfb = manager = None
    if not os.environ.get("DISPLAY"):
        environment["DISPLAY"] = ":97"
        xvfb = subprocess.Popen(["Xvfb", ":97", "-screen", "0", "2560x1800x24"], stderr=subprocess.DEVNULL)
        time.sleep(1)
        if shutil.which("openbox"):  # dialogs have a frame, as on any desktop
            manager = subprocess.Popen(
                ["openbox", "--sm-disable"],
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
    environment["QT_QPA_PLATFORM"] = "xcb"
    try:
        for theme, scale in STYLES:
            if f"{theme}{scale}" in given.styles:
                home = tempfile.mkdtemp(prefix="tessera-shots-")  # a new user each time
                command = [sys.executable, __file__, "--child", theme, str(scale), "--only", given.only]
                subprocess.run(
                    [*command, "--out", str(given.out)],
                    env={**environment, "QT_SCALE_FACTOR": str(scale), "TESSERA_HOME": home, "HOME": home},
                    cwd=ROOT,
                    check=True,
                )
                shutil.rmtree(home, ignore_errors=True)
    finally:
        for process in (manager, xvfb):
            if process is not None:
                process.terminate()
                process.wait()


class Camera:
    """The window of one process, and the pictures it takes."""

    def __init__(self, theme, scale, out):
        from PySide6.QtTest import QTest
        from PySide6.QtWidgets import QApplication

        from app.db.store import open_or_memory
        from app.gui.application import Desktop
        from app.gui.server_link import ServerLink
        from engine.core.paths import user_paths

        self.app = QApplication(["tessera"])
        self.rest = QTest.qWait
        store, _ = open_or_memory(user_paths().state / "chats.db")
        self.desktop = Desktop(self.app, store, ServerLink())
        self.window, self.services = self.desktop.window, self.desktop.services
        self.name = f"{theme}-{100 * scale}.png"
        self.out = out
        self.services.theme.set(theme, 100)
        self.window.resize(1180, 780)

    def wait(self, condition):
        end = time.monotonic() + WAIT_S
        while not condition():
            self.rest(50)
            if time.monotonic() > end:
                sys.exit("a page did not get ready")

    def shoot(self, name):
        self.rest(700)
        # A dialog is a window of its own, above this one: the picture is what the screen shows there.
        at = self.window.geometry()
        screen = self.window.screen()
        picture = screen.grabWindow(0, at.x(), at.y(), at.width(), at.height()).toImage()
        picture.convertToFormat(picture.Format.Format_RGB888).save(str(self.out / f"{name}-{self.name}"), quality=0)

    def first_run(self):
        self.window.chat.new_chat()
        self.rest(2500)

    def chat(self):
        chat = self.window.chat
        chat.controller.change(sampling={"seed": 3})
        for question in QUESTIONS:
            chat.composer.set_text(question)
            chat.composer.send()
            self.wait(lambda: chat.controller.busy)
            self.wait(lambda: not chat.controller.busy)

    def library(self):
        self.window.show_page("library")
        self.window.page("library").tabs.setCurrentIndex(0)
        self.wait(lambda: self.window.page("library").cards)

    def find(self):
        self.window.show_page("library")
        self.window.page("library").tabs.setCurrentIndex(1)
        self.rest(1500)

    def fit(self):
        self.window.show_page("fit")
        fit = self.window.page("fit")
        self.wait(lambda: fit.start.isEnabled() and len(fit._ours) > 5)

    def code(self):
        self.window.show_page("code")
        page = self.window.page("code")
        page.open_folder(ROOT / "engine")
        self.wait(page.files.tree.topLevelItemCount)
        page.files.open("services.py")
        self.wait(lambda: page.files.source.path)

    def documents(self):
        """A folder that was read."""
        from engine.api.collections import CollectionRequest

        folder = Path.home() / "Documents" / "Decisions"
        shutil.copytree(ROOT / "docs" / "adr", folder)
        api = self.services.api
        api.make_collection(CollectionRequest(name="Decisions", sources=(str(folder),)))
        self.wait(lambda: all(each.state != "reading" and each.documents for each in api.collections()))
        self.window.show_page("documents")
        self.rest(2500)

    def power(self):
        """The end of the page of devices."""
        self.window.show_page("devices")
        self.rest(3000)
        bar = self.window.page("devices").verticalScrollBar()
        bar.setValue(bar.maximum())

    def shortcuts(self):
        self.window.show_page("chat")
        self.window.show_shortcuts()

    def compare(self):
        """The demo and a smaller version of itself, made here."""
        for dialog in self.window.findChildren(QDialog):
            dialog.close()
        from engine.api.quantizing import QuantizeOptions

        overrides = {"model": "spark", "tier": "instant", "budget_bytes": 4_500_000}
        before = len(self.services.models.choices)
        self.services.api.quantize(QuantizeOptions(**overrides))
        self.wait(lambda: len(self.services.models.choices) > before)
        chat = self.window.chat
        self.window.show_page("chat")
        chat.use_model("spark")
        chat.controller.change(sampling={"temperature": 0, "max_tokens": 100})
        chat.bar.compare.setChecked(True)
        chat.composer.set_text("What is quantization?")
        chat.composer.send()
        self.wait(lambda: chat.controller.busy)
        self.wait(lambda: not chat.controller.busy)

    def plain(self, name):
        self.window.show_page(name)
        self.rest(3000 if name in {"devices", "dashboard"} else 500)


def take(theme, scale, pages, out):
    camera = Camera(theme, scale, out)
    camera.desktop.start()
    camera.wait(lambda: camera.services.models.choices)
    steps = {"first-run": camera.first_run, "chat": camera.chat, "library": camera.library, "find": camera.find}
    for name in ("fit", "code", "documents", "power", "shortcuts", "compare"):
        steps[name] = getattr(camera, name)
    for name in PAGES:
        if name in pages:
            steps.get(name, lambda name=name: camera.plain(name))()
            camera.shoot(name)
    camera.window.close()
    camera.desktop.close()


if __name__ == "__main__":
    main()
