"""Starts and closes the desktop window."""

import getpass
import hashlib
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import (
    QLibraryInfo,
    QLocale,
    QLockFile,
    QObject,
    QSocketNotifier,
    QTimer,
    QTranslator,
    QUrl,
    Signal,
)
from PySide6.QtGui import QDesktopServices, QGuiApplication, QIcon
from PySide6.QtNetwork import QLocalServer, QLocalSocket
from PySide6.QtWidgets import QApplication

from app.db import backup
from app.db.errors import StoreError
from app.db.store import Store, open_or_memory
from app.gui.animations import prefers_reduced_motion
from app.gui.app_context import AppContext, LiveSettings, Models
from app.gui.background import Background
from app.gui.close_guard import would_be_lost
from app.gui.crash import CrashReports
from app.gui.jobs import Jobs
from app.gui.main_window import MainWindow
from app.gui.markdown.document import warm_up
from app.gui.pages import Pages
from app.gui.reasons import error_message, known_text
from app.gui.server_link import ServerLink
from app.gui.theme import ASSETS, Theme
from app.gui.widgets.basics import Banner
from app.updates import RELEASES, newer_version
from devices.child_command import own_command
from engine.core.paths import user_paths
from engine.core.version import __version__

_BACKUP_AFTER_MS = 8000
# After the first paint: imports on another thread hold the GIL and would delay it.
_WARM_UP_AFTER_MS = 250


class Desktop:
    """The objects that live as long as the window."""

    def __init__(self, app: QApplication, store: Store, link: ServerLink) -> None:
        self.background = Background(app)
        settings = LiveSettings(self.background, parent=app)
        install_language(app, settings.now.text("window.language"))
        now = settings.now
        contrast = now.text("window.contrast")
        theme = Theme(app, now.text("window.theme"), now.integer("window.text_percent"), contrast)
        models = Models(link, self.background, app)
        self.link = link
        self.background.at_last(link.hang_up)
        self.services = AppContext(theme, self.background, store, link, settings, models)
        self.jobs = Jobs(link, self.background, models, app)
        self.window = MainWindow(
            self.services, lambda window: Pages(self.services, self.jobs, window, link).entries()
        )
        self.supervisor = Supervisor(self.services, link, self.window.banner, self.window)
        self.updates = UpdateNotice(self.services, self.window.banner, self.window)
        self.window.server_wanted.connect(self.supervisor.start)
        self.window.find_lost = lambda: would_be_lost(self.jobs.by_id, server_ends=link.owned)
        self.window.closed.connect(app.quit)  # `lastWindowClosed` does not count a hidden window
        self.window.tray.set_wanted(now.flag("window.tray"))
        settings.changed.connect(self._on_setting)
        settings.save_failed.connect(
            lambda reason: self.window.banner.notify(
                self.window.tr("The settings could not be saved: {reason}").format(reason=reason), "bad"
            )
        )
        self.background.failed.connect(
            lambda error: self.window.banner.notify(
                self.window.tr("This could not be done: {reason}").format(reason=error_message(error)), "bad"
            )
        )
        for problem in settings.now.problems:
            shown = ": ".join(part for part in (problem.where, problem.name, known_text(problem.reason)) if part)
            self.window.banner.notify(
                self.window.tr("A setting was invalid, so its default is used: {problem}").format(problem=shown),
                "warn",
            )

    def start(self) -> None:
        """Show the window, then find or start the server and schedule the backup."""
        self.window.show()
        now = self.services.settings.now
        if now.flag("server.start_with_window"):
            self.supervisor.start()
        else:
            self.services.models.start()
        QTimer.singleShot(_WARM_UP_AFTER_MS, self.window, self._warm_up)
        QTimer.singleShot(_BACKUP_AFTER_MS, self.window, self._back_up)
        self.updates.start()

    def show_recovery(self) -> None:
        """If the chat database was corrupt: report it, name the saved copy and offer to restore a backup."""
        opened = self.services.store.opened
        if opened.quarantined is None:
            return
        words = self.window.tr("The file with your chats was damaged. It was saved as {name}.").format(
            name=opened.quarantined.name
        )
        if not opened.restorable:
            self.window.banner.notify(words, "bad")
            return
        newest = opened.restorable[0]

        def restore() -> None:
            future = self.services.store.submit(lambda connection: backup.restore(newest, connection))
            self.background.watch(
                future,
                lambda _: self.window.chat.sidebar.refresh(),
                lambda error: self.window.banner.notify(error_message(error), "bad"),
                self.window,
            )

        action = self.window.tr("Restore the backup {name}").format(name=newest.name)
        self.window.banner.notify(words, "bad", (action, restore))

    def show_crash(self, report: str) -> None:
        """Report a crash of this or the previous run and offer to copy the report. It stays on this computer."""
        words = self.window.tr("Something went wrong. A report without names or chats was saved on this computer.")
        copy = self.window.tr("Copy the report")
        self.window.banner.notify(words, "bad", (copy, lambda: QGuiApplication.clipboard().setText(report)))

    def close(self) -> None:
        """Stop all threads and the server that this window started, then close the store."""
        self.supervisor.stop()
        self.services.models.stop()
        self.jobs.stop()
        self.background.close()
        self.services.settings.close()
        self.link.stop()
        self.services.store.close()
        self.services.theme.close()

    def _warm_up(self) -> None:
        self.background.run(prefers_reduced_motion, self._on_stillness, lambda _: None, self.window)
        self.background.run(warm_up, None, lambda _: None)

    def _on_stillness(self, still: bool) -> None:
        self.services.theme.still = still

    def _on_setting(self, name: str) -> None:
        now = self.services.settings.now
        if name in {"window.theme", "window.text_percent", "window.contrast"}:
            percent, contrast = now.integer("window.text_percent"), now.text("window.contrast")
            self.services.theme.set(now.text("window.theme"), percent, contrast)
        elif name == "window.tray":
            self.window.tray.set_wanted(now.flag("window.tray"))

    def _back_up(self) -> None:
        keep = self.services.settings.now.integer("chat.backup_days")
        self.background.run(
            lambda: self.services.store.back_up_daily(keep),
            None,
            lambda error: self.window.banner.notify(
                self.window.tr("The daily copy of your chats failed: {reason}").format(reason=error_message(error)),
                "warn",
            ),
            self.window,
        )


def run(files: list[str]) -> int:
    """Open the window and run the event loop. Returns the exit code."""
    paths = user_paths()
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    QGuiApplication.setDesktopFileName("io.github.tessera.Tessera")
    app = QApplication(sys.argv[:1])
    app.setApplicationName("Tessera")
    app.setApplicationVersion(__version__)
    app.setWindowIcon(QIcon(str(ASSETS / "icons" / "tessera.svg")))
    instance = SingleInstance()
    if not instance.claim(files):
        return 0
    crashes = CrashReports(paths.logs / "crashes")
    crashes.install()
    try:
        store, unwritable = open_or_memory(paths.state / "chats.db")
    except StoreError as error:
        sys.stderr.write(f"{error}\n")
        return 4
    desktop = Desktop(app, store, ServerLink())
    termination = Termination(desktop.window.quit_now, app)
    instance.opened.connect(desktop.window.open_files)
    crashes.reported.connect(desktop.show_crash)
    desktop.start()
    if crashes.earlier_fault:
        desktop.show_crash(crashes.report(crashes.earlier_fault))
    desktop.show_recovery()
    if unwritable is not None:
        desktop.window.banner.notify(
            desktop.window.tr("Nothing will be saved when you close Tessera: {reason}").format(
                reason=str(unwritable)
            ),
            "bad",
        )
    desktop.window.open_files([str(Path(name).absolute()) for name in files])
    code = app.exec()
    instance.stop_answering()
    desktop.close()
    termination.close()
    instance.release()
    crashes.close()
    if desktop.window.starts_again:
        command = own_command("window")
        os.execv(command[0], command)  # noqa: S606 - this program
    return code


class Termination(QObject):
    """Calls `end` on the main thread on SIGTERM or SIGINT.

    Qt's event loop does not run Python signal handlers, so a wakeup socket is watched.
    """

    def __init__(self, end: Callable[[], object], parent: QObject) -> None:
        super().__init__(parent)
        self._end = end
        self._read, self._write = socket.socketpair()
        self._read.setblocking(False)
        self._write.setblocking(False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)  # Python writes the signal number to the wakeup socket
        signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        self._notifier = QSocketNotifier(self._read.fileno(), QSocketNotifier.Type.Read, self)
        self._notifier.activated.connect(self._on_signal)

    def close(self) -> None:
        """Stop watching for signals."""
        signal.set_wakeup_fd(-1)
        self._notifier.setEnabled(False)
        self._read.close()
        self._write.close()

    def _on_signal(self) -> None:
        self._read.recv(64)
        self._end()


log = logging.getLogger(__name__)
SETTING = "updates.notice"
# Delay after the start, so that more urgent work runs first.
_AFTER_MS = 10_000


class UpdateNotice(QObject):
    """Checks once after the start and again when the setting is turned on. Emits `looked` after each check."""

    looked = Signal()

    def __init__(self, services: AppContext, banner: Banner, parent: QObject) -> None:
        super().__init__(parent)
        self._services, self._banner = services, banner
        self.releases = RELEASES
        services.settings.changed.connect(lambda name: self.look(is_asked=True) if name == SETTING else None)

    def start(self) -> None:
        """Schedule the first check."""
        QTimer.singleShot(_AFTER_MS, self, self.look)

    def look(self, *, is_asked: bool = False) -> None:
        """Check the release page, unless settings forbid it. Show a banner only if there is a newer version.

        `is_asked`: the user has just turned the check on. A failure is then shown too.
        """
        now = self._services.settings.now
        if not now.flag(SETTING) or now.flag("network.offline"):
            return

        def failed(error: Exception) -> None:
            log.info("no look for a newer version: %s", error)
            if is_asked:
                words = self.tr("The release page could not be read now. Tessera checks again at the next start.")
                self._banner.notify(words, "warn")
            self.looked.emit()

        self._services.background.run(lambda: newer_version(self.releases), self._show_version, failed, self)

    def _show_version(self, version: str | None) -> None:
        self.looked.emit()
        if version is None:
            return
        words = self.tr("Tessera {new} is available; this is {own}.").format(new=version, own=__version__)
        page = QUrl(self.releases)
        self._banner.notify(
            words, "info", (self.tr("Open the release page"), lambda: QDesktopServices.openUrl(page))
        )


# The interface language. "pseudo" makes every text longer and accented, to find texts that do not fit.

_ACCENTED = str.maketrans("aeiounAEIOUNcsyl", "áéíöüñÁÉÍÖÜÑçšýł")
# Source: localisation practice; German and Finnish texts are about one third longer than English ones.
_LONGER = 0.35


def pseudo(text: str) -> str:
    """Pseudo-translate: accented, bracketed and about one third longer. {fields} stay unchanged."""
    if not text:
        return text
    parts = text.split("{")
    accented = parts[0].translate(_ACCENTED)
    for part in parts[1:]:
        field, _, after = part.partition("}")
        accented += "{" + field + "}" + after.translate(_ACCENTED)
    return f"[{accented}{'~' * round(len(text) * _LONGER)}]"


class Catalogue(QTranslator):
    """A translation by English text only. It ignores Qt's context."""

    def __init__(self, translated: Callable[[str], str], parent: QObject) -> None:
        super().__init__(parent)
        self._translated = translated

    def translate(self, context: str, source: str, disambiguation: str | None = None, n: int = -1) -> str:
        del context, disambiguation, n
        return self._translated(source)

    def isEmpty(self) -> bool:
        """Always False: Qt skips empty translators."""
        return False


def texts_of(name: str) -> dict[str, str]:
    """The translations of a language (`de`), empty if there is no file."""
    texts: dict[str, str] = {}
    for path in (ASSETS / "languages" / f"{name}.plain.json", ASSETS / "languages" / f"{name}.json"):
        texts |= json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return texts


def install_language(app: QApplication, name: str) -> QTranslator | None:
    """Install the translation for `name` ("system": the system language), if one exists.

    Also sets the default locale.
    """
    if name == "pseudo":
        translator = Catalogue(pseudo, app)
        app.installTranslator(translator)
        return translator
    locale = QLocale.system() if name == "system" else QLocale(name)
    if locale.language() == QLocale.Language.C:
        # No language is set: use English number grouping and month names, like the English texts around them.
        locale = QLocale(QLocale.Language.English, QLocale.Country.World)
    texts = texts_of(QLocale.languageToCode(locale.language()))
    if name != "system" or QLocale().language() == QLocale.Language.C:
        QLocale.setDefault(locale)
    if not texts:
        return None
    translator = Catalogue(lambda text: texts.get(text, text), app)
    app.installTranslator(translator)
    own = QTranslator(app)  # Qt's own texts: dialog buttons, context menus of text fields
    if own.load(locale, "qtbase", "_", QLibraryInfo.path(QLibraryInfo.LibraryPath.TranslationsPath)):
        app.installTranslator(own)
    return translator


_LOOK_MS = 1000
# After a second crash within this time, a restart does not fix the cause.
_TRUST_S = 120.0


class Supervisor(QObject):
    """Starts the server and restarts it once after a crash."""

    def __init__(self, services: AppContext, link: ServerLink, banner: Banner, parent: QObject) -> None:
        super().__init__(parent)
        self._services, self._link, self._banner = services, link, banner
        self._restarted_at: float | None = None
        self._starting = False
        self._reported = False  # the second crash was reported; the user decides what comes next
        self._timer = QTimer(self, interval=_LOOK_MS)
        self._timer.timeout.connect(self._check_server)
        self._timer.start()

    def stop(self) -> None:
        self._timer.stop()

    def start(self) -> None:
        """Connect to a running server or start one."""
        self._begin("")

    def _begin(self, when_there: str) -> None:
        if self._starting:
            return
        self._starting, self._reported = True, False
        now = self._services.settings.now
        host, port, offline = now.text("server.host"), now.integer("server.port"), now.flag("network.offline")

        def started(_: str) -> None:
            self._starting = False
            self._services.models.start()
            if when_there:
                self._banner.notify(when_there, "info")

        def failed(error: Exception) -> None:
            self._starting = False
            self._banner.notify(error_message(error), "bad", (self.tr("Try again"), self.start))

        self._services.background.run(lambda: self._link.start(host, port, offline=offline), started, failed, self)

    def _check_server(self) -> None:
        if self._starting or self._reported or not self._link.crashed:
            return
        now = time.monotonic()
        log.warning("the server ended unexpectedly: %s", self._link.exit_text)
        self._services.models.refresh()
        if self._restarted_at is None or now - self._restarted_at > _TRUST_S:
            self._restarted_at = now
            self._banner.notify(self.tr("The server stopped unexpectedly and is restarting."), "warn")
            self._begin(self.tr("The server stopped unexpectedly. It is running again."))
            return
        self._reported = True
        self._banner.notify(
            self.tr("The server stopped again. Its log is on the page Server, under Log."),
            "bad",
            (self.tr("Start the server"), self.start),
        )


_WAIT_MS = 1000
_MOST_BYTES = 1 << 16
_TAKEN = b"taken\n"
# A window that is busy for longer gets the files when it is free.
_ANSWER_MS = 10_000
# Time for a window to close: its workers, its server and its database.
_CLOSING_S = 60.0
_LOOK_AGAIN_MS = 100


class SingleInstance(QObject):
    """Ensures one window per user.

    `claim` returns whether this process is the first; `opened` emits files of later ones.
    """

    opened = Signal(list)

    def __init__(self) -> None:
        super().__init__()
        state = user_paths().state
        identity = f"{getpass.getuser()}:{state}"
        self._name = f"tessera-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
        self._state = state
        self._lock: QLockFile | None = None
        self._server: QLocalServer | None = None

    def claim(self, files: list[str]) -> bool:
        """Become the first instance and return True, or send `files` to the running one and return False."""
        lock = self._new_lock()
        deadline = time.monotonic() + _CLOSING_S
        while lock is None or not lock.tryLock(_LOOK_AGAIN_MS):
            if self._hand_over(files):
                return False
            is_held = lock is not None and lock.error() == QLockFile.LockError.LockFailedError
            if not is_held or time.monotonic() > deadline:
                break  # no lock can be had here
        self._lock = lock
        QLocalServer.removeServer(self._name)  # left by a killed process
        self._server = QLocalServer(self)
        self._server.setSocketOptions(QLocalServer.SocketOption.UserAccessOption)
        self._server.newConnection.connect(self._on_connection)
        self._server.listen(self._name)
        return True

    def stop_answering(self) -> None:
        """Take no more files, because this window is closing. The next start waits for `release`."""
        if self._server is not None:
            self._server.close()

    def release(self) -> None:
        """Let another process become the first instance."""
        self.stop_answering()
        if self._lock is not None:
            self._lock.unlock()

    def _new_lock(self) -> QLockFile | None:
        """The lock of the running window; None if the home folder is not writable."""
        try:
            self._state.mkdir(parents=True, exist_ok=True)
        except OSError:
            return None
        lock = QLockFile(str(self._state / "window.lock"))
        lock.setStaleLockTime(0)  # a window may run for days: only its process counts
        return lock

    def _hand_over(self, files: list[str]) -> bool:
        """Send the files to the running window. Returns False if there is none, or if it is closing."""
        socket = QLocalSocket()
        socket.connectToServer(self._name)
        if not socket.waitForConnected(_WAIT_MS):
            return False
        socket.write(json.dumps(files).encode() + b"\n")
        socket.waitForBytesWritten(_WAIT_MS)
        is_taken = (
            socket.waitForReadyRead(_ANSWER_MS) or socket.state() == QLocalSocket.LocalSocketState.ConnectedState
        )
        socket.disconnectFromServer()
        return is_taken

    def _on_connection(self) -> None:
        assert self._server is not None
        socket = self._server.nextPendingConnection()

        def read() -> None:
            if not socket.canReadLine() and socket.bytesAvailable() < _MOST_BYTES:
                return
            try:
                files = json.loads(bytes(socket.readLine(_MOST_BYTES).data()))
            except (ValueError, RecursionError):
                files = []
            socket.write(_TAKEN)
            socket.flush()
            self.opened.emit([name for name in files if isinstance(name, str)] if isinstance(files, list) else [])
            socket.disconnectFromServer()

        socket.readyRead.connect(read)
        socket.disconnected.connect(socket.deleteLater)
