"""Takes the screenshots of the pages that the documentation shows, into docs/screenshots/.

Run: python tests/optin/screenshots.py [--only chat,fit] [--styles light1,dark1,light2,dark2] [--size 900x600]
[--language de] [--text 150] [--out FOLDER]. `--only all` takes every page, panel and dialog. Starts Xvfb if there
is no display, and a real server with the installed models; needs no network. Each style runs in a separate
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
from tests.support.servers import free_port

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
    "others",
    "log",
    "settings",
    "shortcuts",
    "compare",
    # Panels, dialogs and states of the chat and of the library.
    "code-edits",
    "code-terminal",
    "code-history",
    "code-answer",
    "thinking",
    "failed",
    "consent",
    "sources",
    "options",
    "options-advanced",
    "tools",
    "tools-add",
    "memory",
    "several",
    "temporary",
    "toast",
    "load",
    "details",
    "models-folder",
    "linked",
    "losses",
    "connect-change",
    "fit-report",
    "settings-sections",
    "about",
    "palette",
)
# An answer with all kinds of code and tables.
ANSWER = """Here is a page, a picture, and what each part costs.

```html
<!doctype html>
<title>Tides</title>
<h1>High tide at 14:05</h1>
```

```svg
<svg xmlns="http://www.w3.org/2000/svg" width="80" height="40"><rect width="80" height="40" fill="teal"/></svg>
```

```mermaid
graph LR; A[Moon] --> B[Tide]; B --> C[Harbour]
```

| Part | Hours | Price |
|:-----|------:|------:|
| Page | 2 | 180.00 |
| Picture | 0.5 | 45.00 |

- [x] measured with `a -> b == c`
- [ ] written down
"""
# A project, and an answer with two edits of it, for the picture of the Code page.
PROJECT = {
    "README.md": "# Tides\n\nWhen to leave the harbour.\n",
    "tests/test_tides.py": """from tides import next_high


def test_none_follows():
    assert next_high([], 5) is None
""",
    "tides.py": """\"\"\"High and low tides of a harbour.\"\"\"

import json


def load(path):
    file = open(path)
    return json.load(file)["tides"]


def next_high(tides, now):
    later = [t for t in tides if t["high"] and t["at"] > now]
    return min(later, key=lambda t: t["at"])
""",
}
EDITS = """`load` never closes its file, and `min` fails on an empty list. Both edits are in tides.py:

tides.py
<<<<<<< SEARCH
    file = open(path)
    return json.load(file)["tides"]
=======
    with open(path) as file:
        return json.load(file)["tides"]
>>>>>>> REPLACE

tides.py
<<<<<<< SEARCH
    return min(later, key=lambda t: t["at"])
=======
    return min(later, key=lambda t: t["at"], default=None)
>>>>>>> REPLACE
"""
# Pages with a picture in the documentation; `--only` takes the others too.
SHOWN = (
    "first-run", "chat", "code", "documents", "library", "find", "fit", "devices", "power", "bench", "connect",
    "server", "tools",
)  # fmt: skip
STYLES = (("light", 1), ("dark", 1), ("light", 2), ("dark", 2))
QUESTIONS = [suggestion.question for suggestion in FOR_A_MODEL[::2]]
WAIT_S = 300


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default=",".join(SHOWN))
    parser.add_argument("--styles", default="light1")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--size", default="1180x780")
    parser.add_argument("--text", type=int, default=100)
    parser.add_argument("--language", default="en")
    given = parser.parse_args()
    pages = PAGES if given.only == "all" else given.only.split(",")
    if given.child:
        take(Camera(given.child[0], int(given.child[1]), given), pages)
        return
    given.out.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "TESSERA_SERVER_PORT": str(free_port()), "PYTHONPATH": str(ROOT)}
    environment |= {"TESSERA_WINDOW_LANGUAGE": given.language}
    xvfb = manager = None
    if not os.environ.get("DISPLAY"):
        environment["DISPLAY"] = f":{os.getpid() % 9000 + 100}"
        xvfb = subprocess.Popen(
            ["Xvfb", environment["DISPLAY"], "-screen", "0", "2880x1800x24"], stderr=subprocess.DEVNULL
        )
        time.sleep(1)
        if shutil.which("openbox"):  # dialogs have a frame, like on any desktop
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
                command += ["--size", given.size, "--text", str(given.text), "--language", given.language]
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
    """The window of one process, and the screenshots of it."""

    def __init__(self, theme, scale, given):
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
        marks = [given.size] if given.size != "1180x780" else []
        marks += [f"text{given.text}"] if given.text != 100 else []
        marks += [given.language] if given.language != "en" else []
        self.name = "-".join([theme, str(100 * scale), *marks]) + ".png"
        self.out = given.out
        self.name_of_page = "the models"
        self.services.theme.set(theme, given.text)
        self.window.resize(*map(int, given.size.split("x")))

    def wait(self, condition):
        end = time.monotonic() + WAIT_S
        while not condition():
            self.rest(50)
            if time.monotonic() > end:
                sys.exit(f"not ready: {self.name_of_page}")

    def shoot(self, name):
        self.rest(700)
        # A dialog is a separate window above this one: the screenshot is that part of the screen.
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
        library = self.window.page("library")
        library.tabs.setCurrentIndex(1)
        self.wait(lambda: library.hub._shows_starters)

    def fit(self):
        self.window.show_page("fit")
        fit = self.window.page("fit")
        self.wait(lambda: fit.start.isEnabled() and len(fit._ours) > 5)

    def code(self):
        """A question and two edits of its answer in the file; the answer is written here, not by a model."""
        from app.client.chat_stream import ChatDelta

        folder = Path.home() / "tides"
        for path, text in PROJECT.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        self.services.api.answer = lambda _: (chunk for chunk in [ChatDelta(text=EDITS)])
        self.window.show_page("code")
        page = self.window.page("code")
        page.open_folder(folder)
        self.wait(page.files.tree.topLevelItemCount)
        page.composer.set_text("Close the file in load, and return None if no high tide follows @tides.py")
        page.composer.send()
        self.wait(lambda: page.review.hunks.count() == 2)
        page.review.hunks.setCurrentRow(0)
        page.review.in_file.click()
        self.wait(lambda: len(page.files.source.hunks) == 2)
        del self.services.api.answer

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

    def bench(self):
        """A measured model, over the forecast of it."""
        self.window.show_page("bench")
        page = self.window.page("bench")
        self.wait(page.start.isEnabled)
        page.model.setCurrentIndex(page.model.findData(("model", "spark")))
        self.wait(lambda: len(page.decode.lines) == 1)
        page.lengths.setText("64, 512, 1024")
        page.repeats.setValue(1)
        page.start.click()
        self.wait(lambda: len(page.decode.lines) == 4 and page.start.isEnabled())

    def shortcuts(self):
        self.window.show_page("chat")
        self.window.show_shortcuts()

    def compare(self):
        """The demo and a smaller version of itself, made here."""
        from engine.api.quantizing import QuantizeOptions

        self.close_dialogs()
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

    # -- panels, dialogs and states

    def close_dialogs(self):
        for dialog in self.window.findChildren(QDialog):
            dialog.close()
        self.rest(200)

    def code_edits(self):
        self.close_dialogs()
        self.window.show_page("code")
        self.window.page("code").tabs.setCurrentIndex(1)

    def code_terminal(self):
        page = self.window.page("code")
        page.tabs.setCurrentIndex(2)
        page.terminal.begin("python -m pytest tests/test_tides.py")
        page.terminal.append("\x1b[32m.\x1b[0m                                   [100%]\n1 passed in 0.02s\n")
        page.terminal.end(0, 1.2)

    def code_history(self):
        self.window.page("code").tabs.setCurrentIndex(3)

    def thinking(self):
        from PySide6.QtWidgets import QPushButton

        reasoning = "The tide rises for about six hours.\n\nHigh water was at 7:52, so low water is near 14:05."
        self.conversation("When is low water?", "About 14:05.", reasoning=reasoning)
        self.rest(500)
        for fold in self.window.chat.transcript.findChildren(QPushButton):
            if fold.isCheckable():
                fold.setChecked(True)

    def failed(self):
        self.conversation(
            "Which boats sail?",
            "Two boats leave at eight, and",
            status="error",
            error="The connection to the server ended before the answer was complete",
            error_code="unreachable",
        )

    def consent(self):
        from app.tools.consent import ConsentRequest

        self.conversation("Who is in town?", "I will look.")
        self.rest(300)
        command = "/home/user/.local/bin/uvx mcp-server-time --local-timezone=Europe/Berlin"
        title = "Start the tool server “time”?"
        request = ConsentRequest(kind="mcp server", title=title, detail=command, key="mcp server:time")
        self.window.chat.controller.tools.consent_wanted.emit(request)
        self.rest(300)

    def connect_change(self):
        self.close_dialogs()
        self.window.show_page("connect")
        page = self.window.page("connect")
        page.buttons["codex"][0].click()
        self.wait(page.review.isVisible)
        page.verticalScrollBar().setValue(0)

    def fit_report(self):
        """A smaller Spark, made at once, and its report."""
        self.fit()
        fit, jobs = self.window.page("fit"), self.desktop.jobs
        fit.tier.setCurrentIndex(0)
        before = len(jobs.by_id)
        fit.start.click()
        self.wait(lambda: len(jobs.by_id) > before and all(job.ended for job in jobs.by_id.values()))
        self.wait(fit._report.count)
        fit.banner.hide()
        self.rest(500)
        fit.verticalScrollBar().setValue(fit.verticalScrollBar().maximum())

    def settings_sections(self):
        """Each section of the settings, in a separate screenshot."""
        self.window.show_page("settings")
        page = self.window.page("settings")
        for name in page._frames:
            page.show_section(name)
            page.verticalScrollBar().setValue(0)
            self.shoot(f"settings-{name.lower().replace(' ', '-')}")

    def conversation(self, question, answer, status="complete", reasoning="", **facts):
        """A finished chat, opened."""
        from app.db import conversations, messages
        from app.db.records import AnswerFacts

        def write(connection):
            made = conversations.create(connection, title=question, model="spark")
            asked = messages.add(connection, made.id, None, "user", question)
            written = {"model": "spark", "status": status, "reasoning": reasoning, "facts": AnswerFacts(**facts)}
            messages.add(connection, made.id, asked.id, "assistant", answer, **written)
            return made.id

        self.close_dialogs()
        number = self.services.store.submit(write).result()
        self.window.show_page("chat")
        self.window.chat.sidebar.refresh()
        self.window.chat.open(number)
        self.wait(lambda: self.window.chat.controller.conversation.id == number)

    def code_answer(self):
        self.conversation("How much is a page about tides?", ANSWER)
        self.rest(500)
        self.window.chat.transcript.verticalScrollBar().setValue(0)

    def sources(self):
        from app.answer_facts import WebSource

        pages = (
            WebSource(title="Tide tables of the harbour", url="https://tides.example.org/harbour"),
            WebSource(title="Why two tides a day", url="https://en.example.org/wiki/Tide"),
        )
        memories = ("You live in Hamburg.",)
        self.conversation("When is high tide?", "At 14:05 [1].", sources=pages, memories=memories)

    def options(self):
        self.close_dialogs()
        self.window.show_page("chat")
        if not self.window.chat.options.isVisible():
            self.window.chat._toggle_options()

    def options_advanced(self):
        self.options()
        self.window.chat.options.advanced.heading.setChecked(True)

    def tools(self):
        self.close_dialogs()
        self.window.show_page("chat")
        self.window.chat.tools.card.hide()
        self.window.chat.options.hide()
        self.window.chat.bar.tools_pressed.emit()

    def tools_add(self):
        self.window.chat.tools.panel.add()

    def memory(self):
        from app.gui.chat.memory import MemoryDialog

        self.close_dialogs()
        self.window.chat.tools.panel.hide()
        MemoryDialog(self.services, self.window).open()

    def several(self):
        self.close_dialogs()
        self.conversation("Which boats sail?", "Two.")
        number = self.window.chat.controller.conversation.id
        self.rest(500)
        self.window.chat.sidebar._begin_selection(number)

    def temporary(self):
        self.window.chat.sidebar._end_selection()
        self.window.new_temporary_chat()

    def toast(self):
        self.window.new_chat()
        self.window.show_page("library")
        tabs = self.window.page("library").tabs
        tabs.setCurrentIndex(0)
        self.window.page("library")._confirm_removal("spark", "Spark (demo)")

    def load(self):
        self.window.page("library").banner.hide()
        self.window.page("library")._open_settings("spark", "Spark (demo)")
        self.rest(1000)

    def details(self):
        self.close_dialogs()
        self.window.page("library")._show_details("spark")
        self.wait(lambda: any(dialog.isVisible() for dialog in self.window.findChildren(QDialog)))

    def models_folder(self):
        self.close_dialogs()
        page = self.window.page("library")
        page._ask_to_move(self.services.api.models_folder(), Path("/mnt/large/models"))

    def linked(self):
        """A linked folder, and one of another application."""
        self.window.page("library").banner.hide()
        mine, studio = Path.home() / "drive" / "models", Path.home() / ".lmstudio" / "models"
        for folder, name in ((mine, "lantern"), (studio, "harbour")):
            folder.mkdir(parents=True)
            shutil.copyfile(ROOT / "assets" / "models" / "spark-f16.gguf", folder / f"{name}.gguf")
        self.services.api.link(str(mine))
        self.window.page("library")._open_linked_folders()

    def losses(self):
        """Uploads of a model, compared; the figures are made up."""
        from engine.api.hub import UploadComparison, UploadLoss
        from tests.gui.wire import hub_option, hub_plan

        self.close_dialogs()
        sizes = {"Q2_K": (3.2, 0.31), "Q4_K_M": (4.9, 0.021), "Q6_K": (6.6, 0.0031), "Q8_0": (8.5, 0.0006)}
        losses = [
            UploadLoss(repo="org/found", label=label, size_bytes=round(gb * 1e9), bits_per_weight=gb, kld=loss,
                       low=loss / 4, high=loss * 4)
            for label, (gb, loss) in sizes.items()
        ]  # fmt: skip
        other = "another/found-with-a-long-name-GGUF"
        losses.append(UploadLoss(repo=other, label="IQ4_XS", size_bytes=4_500_000_000, problem="It is damaged."))
        library = self.window.page("library")
        library.tabs.setCurrentIndex(1)
        self.rest(3000)  # the suggestions arrive, and would take its place
        options = [hub_option(label, round(gb * 1e9)) for label, (gb, _) in sizes.items()]
        library.hub._compared["org/found"] = UploadComparison(
            original="org/found:F16", uploads=tuple(losses), fetched_bytes=700 << 20, total_bytes=44 << 30
        )
        library.hub._show_plan(hub_plan(*options))
        self.rest(300)
        library.verticalScrollBar().setValue(library.verticalScrollBar().maximum())

    def about(self):
        from app.gui.about import About

        self.window.page("library").banner.hide()
        About(self.services, self.window).open()

    def palette(self):
        self.close_dialogs()
        self.window.commands.open()

    def plain(self, name):
        self.window.show_page(name)
        self.rest(3000 if name in {"devices", "dashboard"} else 500)


def take(camera, pages):
    camera.desktop.start()
    try:
        camera.wait(lambda: camera.services.models.choices)
        for name in PAGES:
            if name in pages:
                camera.name_of_page = name
                getattr(camera, name.replace("-", "_"), lambda name=name: camera.plain(name))()
                camera.shoot(name)
        camera.close_dialogs()
    finally:  # otherwise its threads and its server continue
        camera.window.close()
        camera.desktop.close()


if __name__ == "__main__":
    main()
