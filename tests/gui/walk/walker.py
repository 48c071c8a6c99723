"""A simulated user: a real X server, mouse and keys through its test extension, a real window and server."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from tests.gui.walk.screen import WAIT_S
from tests.support.servers import free_port, give_dry_runs, take_dry_runs

ROOT = Path(__file__).resolve().parents[3]
LATE_S = 10.0  # an event that has not arrived by then is requested again
CUT_S = 15.0
ANSWER_TOKENS = 200  # by default, as a person would set it: a small model's answer may fill its context otherwise
LONGEST_S = 0.12  # between two checks of long work; each costs the window some CPU time
# After this time a click is not part of a double click: a list ignores clicks that may be part of the one that
# opened it.
ALONE_S = 0.15  # three times the window's interval, see `windowed`
OWN_NETWORK = ["unshare", "--map-root-user", "--net"]
# Pages inside a destination.
PAGES = {
    "Documents": ("Chat", None),
    "Library": ("Models", "Library"),
    "Make it fit": ("Models", "Make it fit"),
    "Server": ("Server", "Overview"),
    "Connect": ("Server", "Connect"),
    "Dashboard": ("Server", "Dashboard"),
    "Other computers": ("Server", "Other computers"),
    "Log": ("Server", "Log"),
    "Devices": ("System", "Devices"),
    "Measure": ("System", "Measure"),
}


class Walk:
    """The program on a screen."""

    def __init__(self, screen, home, env=None, files=(), *, network=True, disk_mib=0, answer_tokens=ANSWER_TOKENS):
        """Without a network, every Python process records in `attempts` whom it tried to reach.

        `disk_mib`: the chats' folder is on a separate disk of that size, which `disk` returns.
        `answer_tokens`: the limit of answers in the settings of a new home; 0 for none.
        """
        self.screen, self.home = screen, Path(home)
        settings = self.home / "config" / "settings.toml"
        if not settings.exists():
            settings.parent.mkdir(parents=True, exist_ok=True)
            settings.write_text(f"[chat]\nmax_tokens = {answer_tokens}\n")
        (self.home / "user").mkdir(exist_ok=True)
        give_dry_runs(self.home)
        self.env = {**screen.env, "TESSERA_HOME": str(self.home), "HOME": str(self.home / "user"), **(env or {})}
        self.env.pop("QT_QPA_PLATFORM", None)
        self.env["PYTHONPATH"] = str(ROOT)
        self.launcher = []
        if not network:
            self.launcher = OWN_NETWORK if has_namespaces() else []
            self.env["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).with_name("watched")), str(ROOT)])
            self.env |= {
                "WALK_CONNECTIONS": str(self.home / "connections"),
                "WALK_OWN_NETWORK": "".join(self.launcher),
            }
        if disk_mib:
            (self.home / "state").mkdir(exist_ok=True)
            script = f'mount -t tmpfs -o size={disk_mib}m none "$0" && exec "$@"'
            self.launcher = ["unshare", "-rm", "sh", "-c", script, str(self.home / "state")]
        if "TESSERA_SERVER_PORT" not in self.env:
            self.env["TESSERA_SERVER_PORT"] = str(free_port())
        self.files = [str(file) for file in files]
        self.process = None
        self.start()

    def start(self):
        """Open the window, with the same folders as before."""
        self.sockets = tempfile.mkdtemp(prefix="walk-")
        path = str(Path(self.sockets) / "eye")
        self.log = (self.home / "window.log").open("ab")
        started = time.monotonic()
        self.process = subprocess.Popen(
            [*self.launcher, sys.executable, "-m", "tests.gui.walk.windowed", path, *self.files],
            cwd=ROOT,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
        )
        self.peer = socket.socket(socket.AF_UNIX)
        while True:
            try:
                self.peer.connect(path)
                break
            except OSError:
                if self.process.poll() is not None or time.monotonic() - started > WAIT_S:
                    raise AssertionError(f"no window: {self.told()}") from None
                time.sleep(0.02)
        self.lines = self.peer.makefile("rw", encoding="utf-8")
        self.until("window.isActiveWindow()")
        self.started_s = time.monotonic() - started

    @property
    def disk(self):
        """The small disk of the chats, as the window sees it."""
        return Path(f"/proc/{self.process.pid}/root{self.home}/state")

    def told(self):
        """The ends of the window's output and of the logs of its servers, the last server's last."""
        found = []
        for name in ("window.log", "logs/server.log.1", "logs/server.log"):
            path = self.home / name
            if path.exists():
                found.append(f"--- {name}\n{path.read_text(errors='replace')[-3000:]}")
        return "\n".join(found)

    def attempts(self):
        """The addresses that the processes of a window without a network tried to reach."""
        record = self.home / "connections"
        return record.read_text().splitlines() if record.exists() else []

    def run(self, code):
        """The output of that Python program, run in the window's network."""
        inside = ["nsenter", "--user", "--net", "--preserve-credentials", "--target", str(self.process.pid)]
        command = [*(inside if self.launcher else ()), sys.executable, "-c", code]
        done = subprocess.run(
            command, env=self.env, check=True, capture_output=True, text=True, timeout=10 * WAIT_S
        )
        return done.stdout

    def ask(self, code):
        """Query the window: `window`, `chat`, `desktop`, `says()`, `cut()`, `spot(text)`, `takes_keys()`."""
        good, answer = self._look(code)
        assert good, answer
        return answer

    def _look(self, code):
        """Whether this can be read now, and its value, or the reason why not."""
        self.lines.write(json.dumps(code) + "\n")
        self.lines.flush()
        line = self.lines.readline()
        assert line, f"the window is gone: {self.told()}"
        return json.loads(line)

    def until(self, code, seconds=WAIT_S):
        """Whether this can be read now, and its value, or the reason why not."""
        if answer := self.comes(code, seconds):
            return answer
        self.picture("late")
        told = f"written: {self.ask('written()')}\nthe window says: {self.ask('says()')}"
        raise AssertionError(f"not within {seconds} s: {code}\n{told}\n{self._look(code)[1]}\n{self.told()}")

    def comes(self, code, seconds):
        """The value of `code` once it is true, or its last value after this time; None if it could not be read."""
        started, pause = time.monotonic(), 0.03
        while True:
            good, answer = self._look(code)
            if (good and answer) or time.monotonic() - started > seconds:
                return answer if good else None
            time.sleep(pause)
            pause = min(LONGEST_S, 1.1 * pause)

    def mark(self, widget):
        """Mark a widget; `until(fresh(widget))` then waits for its replacement."""
        self.ask(f"{widget}.setProperty('walked', True) and None")

    def settle(self):
        """Wait until the window has painted its changes and three screenshots are equal."""
        seen = []
        for _ in range(60):
            seen = [*seen[-2:], self.ask("fingerprint()")]
            if len(seen) == 3 and len(set(seen)) == 1:
                return
            time.sleep(0.05)

    def cuts(self, root=""):
        """Texts that stay cut off after the layout is complete; see `cut`."""
        started = time.monotonic()
        while found := self.ask(f"cut({root})"):
            if time.monotonic() - started > CUT_S:
                return found
            self.settle()
        return []

    def find(self, text, within="None", nth=0, seconds=WAIT_S, *, disabled=False):
        """The middle of the widget with that name, once it is visible and has stopped moving."""
        before, pause = None, 0.03
        started = time.monotonic()
        while True:
            good, rect = self._look(f"spot({text!r}, {within}, nth={nth}, disabled={disabled})")
            if good and rect and rect == before:
                return rect[0] + rect[2] // 2, rect[1] + rect[3] // 2
            if time.monotonic() - started > seconds:
                self.picture("missing")
                why = "" if good else f"; {rect}"
                told = f"the window says: {self.ask('says()')}{why}\n{self.told()}"
                raise AssertionError(f"{text!r} cannot be seen; {told}")
            before = rect if good else None
            time.sleep(0.03 if before else pause)
            pause = min(LONGEST_S, 1.1 * pause)

    def click(self, text, within="None", nth=0, button=1):
        """Click the middle of a widget, which must not have moved under the mouse."""
        for _ in range(5):
            x, y = self.find(text, within, nth)
            self.screen.hand("mousemove", x, y)
            good, now = self._look(f"spot({text!r}, {within}, nth={nth})")
            if not good or not now or (now[0] + now[2] // 2, now[1] + now[3] // 2) == (x, y):
                break
        if shut := self.ask(f"toast_over({x}, {y}, {text!r})"):
            self.screen.hand("mousemove", shut[0] + shut[2] // 2, shut[1] + shut[3] // 2, "click", 1)
            self.until(f"not toast_over({x}, {y}, {text!r})")
        self.screen.hand("mousemove", x, y, "click", button)

    def click_at(self, x, y, button=1):
        """Click at a position."""
        self.screen.hand("mousemove", x, y, "click", button)

    def hover(self, text, within="None", nth=0):
        """Move the mouse to a position."""
        x, y = self.find(text, within, nth)
        self.screen.hand("mousemove", x, y)

    def type(self, text):
        """Type a text, key by key."""
        self.has_keys()
        self.screen.hand("type", "--delay", 2, text)

    def key(self, *names):
        """Press named keys, such as ctrl+Return."""
        self.has_keys()
        self.screen.hand("key", "--delay", 5, *names)

    def has_keys(self):
        """Wait until the frontmost window has the keyboard focus."""
        if not self.comes("takes_keys()", LATE_S):  # a window that opens late would take the keyboard from another
            front = self.ask("int((app.activeModalWidget() or window).window().winId())")
            self.screen.hand("windowactivate", front)
            self.until("takes_keys()")

    def tick(self, name, within="None"):
        """Click the mark of a check box, which may be wider than its text."""
        self.find(name, within)
        x, y, _, height = self.ask(f"spot({name!r}, {within})")
        self.click_at(x + height // 2, y + height // 2)

    def fill(self, name, text, within="None"):
        """Replace the text of this field."""
        for _ in range(3):
            self.click(name, within)
            if self.comes(f"{name!r} in words_of(app.focusWidget())", LATE_S):
                break
        self.until(f"{name!r} in words_of(app.focusWidget())")
        self.key("ctrl+a", *() if text else ("BackSpace",))
        if text:
            self.type(text)
        self.until(f"written() == {text!r}")

    def open_list(self, name, within="None"):
        """Open a drop-down, and again if a finished load has closed it."""
        for _ in range(3):
            self.click(name, within)
            if self.comes("app.activePopupWidget() is not None", LATE_S):
                break
        self.until("app.activePopupWidget() is not None")

    def choose(self, name, entry, within="None"):
        """Choose that entry of a drop-down."""
        self.open_list(name, within)
        for _ in range(3):
            time.sleep(ALONE_S)
            self.click(entry)
            if self.comes("app.activePopupWidget() is None", LATE_S):
                return
        self.until("app.activePopupWidget() is None")

    def say(self, text):
        """Send a question in the chat, and wait for the end of its answer, however fast this computer is."""
        before = self.ask("len(chat.controller.tree)")
        self.click("Message", "chat")
        self.type(text)
        self.until(f"chat.composer.text == {text!r}")  # keys arrive with a delay
        self.key("Return")
        self.until(f"len(chat.controller.tree) >= {before} + 2 and not chat.controller.busy")

    def open_advanced(self):
        """Open the collapsed options of the chat."""
        if not self.ask("chat.options.advanced.is_open"):
            self.click("Advanced", "chat.options")
        self.until("chat.options.limit.isVisible()")

    def attach(self, path):
        """Attach a file to the chat's next question, with the file dialog."""
        self.click("Attach files", "chat")
        self.choose_file(path)
        self.until(f"{Path(path).name!r} in says(chat.composer)")

    def choose_file(self, path):
        """Choose that file or folder in the dialog that has just opened."""
        self.name_file(path)
        self.key("Return")
        self.dialog_closed()

    def name_file(self, path):
        """Type its path into the file dialog."""
        field = "type(app.focusWidget()).__name__ == 'QLineEdit' and app.focusWidget().window() is not window"
        self.until("spot('File name:') or spot('Directory:')")
        for _ in range(3):
            if not self.comes(field, LATE_S):  # a window that opens late is taken for one that steals the keyboard
                self.screen.hand("windowactivate", self.ask("int(app.activeModalWidget().winId())"))
                self.until(field)
            self.key("ctrl+a")
            self.type(str(path))
            if self.comes(f"written() == {str(path)!r}", 2 * LATE_S):
                return
        self.picture("late")
        raise AssertionError(f"{path} cannot be written; the window says: {self.ask('says()')}")

    def dialog_closed(self):
        """Wait until the window gets the keyboard back from its dialog."""
        self.until("app.activeModalWidget() is None and window.isActiveWindow()")

    def new_chat(self):
        """Open an empty chat with its shortcut."""
        self.go("Chat")
        self.key("ctrl+n")
        self.until("len(chat.controller.tree) == 0 and window.isActiveWindow()")

    def phases(self, code, last, seconds=WAIT_S):
        """The values of `code` from now until one starts with `last`: each new text once."""
        seen, first = [], 0.0
        started = time.monotonic()
        while not seen or not seen[-1].startswith(last):
            told = self.ask(code)
            if told and (not seen or told != seen[-1]):
                first = first or time.monotonic()
                seen.append(told)
            if time.monotonic() - started > seconds:
                self.picture("late")
                raise AssertionError(f"not within {seconds} s: {last}; {seen}\n{self.told()}")
            time.sleep(0.02)
        self.phases_s = time.monotonic() - first
        return seen

    def eject(self):
        """Unload every model with the chat's list of models."""
        if not self.loaded():
            return
        self.go("Chat")
        self.click("Model", "chat.bar")
        self.until("app.focusWidget() is not None and app.focusWidget().accessibleName() == 'Search models'")
        titles, started = "[c.title for c in desktop.services.models.choices if c.loaded]", time.monotonic()
        while self.loaded():
            assert time.monotonic() - started < 2 * WAIT_S, "it stays in memory"
            if names := self.comes(titles, 2 * LATE_S):  # the window checks from time to time
                self.click(f"Eject {names[0]}")
                self.comes(f"{names[0]!r} not in {titles}", 2 * LATE_S)
        self.key("Escape")
        self.until(
            "app.activeModalWidget() is None and app.activePopupWidget() is None and window.isActiveWindow()"
        )
        assert not self.loaded(), "nothing brings an ejected model back by itself"

    def states(self, kind):
        """States of the server's jobs of this kind, oldest first."""
        return self.ask(f"[j.state for j in desktop.jobs.by_id.values() if j.kind.value == {kind!r}]")

    def ends(self, kind, number, state, seconds=WAIT_S):
        """Wait until the job of that kind and number is in this state."""
        of_kind = f"[j.state for j in desktop.jobs.by_id.values() if j.kind.value == {kind!r}]"
        self.until(f"({of_kind} + [''] * 9)[{number}] == {state!r}", seconds)

    def loaded(self):
        """Ids of the models that the server has in memory."""
        return [model["id"] for model in self.manage("loaded")["models"]]

    def manage(self, path, body=None, method=None):
        """The server's response to a request by the same user, below /tessera/v1; None: no response."""
        known = self.server()
        raw = None if body is None else json.dumps(body).encode()
        headers = {"x-api-key": known["token"], "content-type": "application/json"}
        asked = urllib.request.Request(f"{known['url']}/tessera/v1/{path}", raw, headers, method=method)
        with urllib.request.urlopen(asked, timeout=WAIT_S) as answered:
            told = answered.read()
            return json.loads(told) if told else None

    def go(self, page):
        """Go to a page: its destination in the bar on the left, then its name in the row above the page."""
        place, section = PAGES.get(page, (page, None))
        self.click(place, "window._rail")
        if page == "Documents":  # next to the list of chats
            self.until("chat.isVisible()")
            if not self.ask("chat.sidebar.isVisible()"):
                self.click("Show or hide the list of chats", "chat.bar")
            self.click("Documents", "chat.sidebar")
        elif section is not None:
            self.click(section, "window._sections")

    def picture(self, name):
        """Save a screenshot in the folder WALK_PICTURES."""
        folder = os.environ.get("WALK_PICTURES")
        if folder:
            self.ask(f"picture({str(Path(folder) / name) + '.png'!r})")

    def server(self):
        """The data that this window's server reports about itself; None without a server."""
        try:
            return json.loads((self.home / "state" / "server.json").read_text())
        except (OSError, ValueError):
            return None

    def kill(self, number=signal.SIGKILL):
        """End the window's process."""
        self.process.send_signal(number)
        self.process.wait(WAIT_S)
        self.forget()

    def close(self):
        """Close the window like a user, and check that it ended well."""
        take_dry_runs(self.home)
        if self.process.poll() is None:
            self.process.terminate()
        try:
            assert self.process.wait(WAIT_S) == 0, self.told()
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            self.forget()

    def forget(self):
        self.lines.close()
        self.peer.close()
        self.log.close()
        shutil.rmtree(self.sockets, ignore_errors=True)


def has_namespaces():
    """Whether this system lets a process create a network namespace."""
    if not shutil.which(OWN_NETWORK[0]):
        return False
    return subprocess.run([*OWN_NETWORK, "true"], capture_output=True, check=False).returncode == 0
