"""Starting and ending the window."""

import os
import sys
from pathlib import Path

from PySide6.QtCore import QTimer
from PySide6.QtGui import QGuiApplication, QIcon
from PySide6.QtWidgets import QApplication

from app.db import backup
from app.db.errors import StoreError
from app.db.store import Store, open_or_memory
from app.gui.animations import asks_for_stillness
from app.gui.app_context import LiveSettings, Models, Services
from app.gui.background import Background
from app.gui.close_guard import would_be_lost
from app.gui.crash import CrashReports
from app.gui.jobs import Jobs
from app.gui.language import install_language
from app.gui.main_window import MainWindow
from app.gui.markdown.document import warm_up
from app.gui.pages import Pages
from app.gui.server_errors import error_message
from app.gui.server_link import ServerLink
from app.gui.server_watchdog import Supervisor
from app.gui.signal_handler import Termination
from app.gui.single_instance import SingleInstance
from app.gui.theme import ASSETS, Theme
from app.gui.update_notice import UpdateNotice
from engine.core.paths import user_paths
from engine.core.version import __version__

_BACKUP_AFTER_MS = 8000
# Behind the first picture: another thread's imports take the interpreter from it.
_WARM_UP_AFTER_MS = 250


class Desktop:
    """Everything that lives as long as the window."""

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
        self.services = Services(theme, self.background, store, link, settings, models)
        self.jobs = Jobs(link, self.background, models, app)
        self.window = MainWindow(
            self.services, lambda window: Pages(self.services, self.jobs, window, link).entries()
        )
        self.supervisor = Supervisor(self.services, link, self.window.banner, self.window)
        self.updates = UpdateNotice(self.services, self.window.banner, self.window)
        self.window.server_wanted.connect(self.supervisor.start)
        self.window.find_lost = lambda: would_be_lost(self.jobs.by_id, server_ends=link.owned)
        self.window.closed.connect(app.quit)  # the last window may be a hidden one, which Qt does not count
        self.window.tray.set_wanted(now.flag("window.tray"))
        settings.changed.connect(self._on_setting)
        settings.save_failed.connect(
            lambda reason: self.window.banner.notify(
                self.window.tr("The settings could not be saved: {reason}").format(reason=reason), "bad"
            )
        )
        for problem in settings.now.problems:
            self.window.banner.notify(
                self.window.tr("A setting was not usable and is at its default: {problem}").format(problem=problem),
                "warn",
            )

    def start(self) -> None:
        """Show the window, then find or start the server and back up."""
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
        """If the chats were damaged: say so, keep the file, offer the backup."""
        opened = self.services.store.opened
        if opened.quarantined is None:
            return
        words = self.window.tr("Your chats file was damaged. It is kept as {name}.").format(
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
        """Something broke, now or in the run before: offer the report, which stays on this computer."""
        words = self.window.tr("Something went wrong. A report without names or chats is on this computer.")
        copy = self.window.tr("Copy the report")
        self.window.banner.notify(words, "bad", (copy, lambda: QGuiApplication.clipboard().setText(report)))

    def close(self) -> None:
        """Join every thread, stop the server this window started, close the store."""
        self.supervisor.stop()
        self.services.models.stop()
        self.jobs.stop()
        self.background.close()
        self.services.settings.close()
        self.link.stop()
        self.services.store.close()
        self.services.theme.close()

    def _warm_up(self) -> None:
        self.background.run(asks_for_stillness, self._on_stillness, parent=self.window)
        self.background.run(warm_up)

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
    """Open the window; returns the exit code."""
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
            desktop.window.tr("Nothing will be kept after closing: {reason}").format(reason=str(unwritable)), "bad"
        )
    desktop.window.open_files([str(Path(name).absolute()) for name in files])
    code = app.exec()
    desktop.close()
    termination.close()
    instance.release()
    crashes.close()
    return code
