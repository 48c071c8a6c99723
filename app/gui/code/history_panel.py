"""Shows recent projects, earlier sessions of a project, and the bar above an opened earlier session."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtWidgets import QFrame, QListWidget, QListWidgetItem, QWidget

from app.code.history import RecentProject, RecentProjects, SessionRecord, SessionSummary
from app.gui import formatted
from app.gui.background import Background
from app.gui.theme import Theme
from app.gui.widgets.basics import IconButton, button, label, row, stack, when_released
from app.gui.widgets.flow import Flow
from app.gui.widgets.search_popup import Entry, SearchPopup
from engine.core.paths import user_paths

_ID = Qt.ItemDataRole.UserRole
_MOST_NAMES = 3  # maximum number of changed files named in a row


class RecentList(QObject):
    """The stored list of recent projects."""

    changed = Signal(object)  # pairs of a recent project and whether its folder is missing
    failed = Signal(object)

    def __init__(self, background: Background, parent: QObject) -> None:
        super().__init__(parent)
        self._background = background
        self._projects = RecentProjects(user_paths())

    def note(self, root: Path) -> None:
        """Put a project to the front. Worker thread only. Raises: OSError."""
        self._projects.note(root)

    def refresh(self, then: Callable[[str], object] | None = None) -> None:
        """Read the list; `then` gets the latest folder, if there is one and it exists."""

        def work() -> tuple[tuple[RecentProject, bool], ...]:
            return tuple((project, project.is_missing) for project in self._projects.all())

        def done(projects: tuple[tuple[RecentProject, bool], ...]) -> None:
            self.changed.emit(projects)
            if then is not None and projects and not projects[0][1]:
                then(projects[0][0].folder)

        newest = "" if then is not None else "list"  # `then` is called in any case
        self._background.run(work, done, self.failed.emit, self, newest)

    def forget(self, folder: str) -> None:
        """Remove a folder from the list."""
        work = partial(self._projects.remove, folder)
        self._background.run(work, lambda _: self.refresh(), self.failed.emit, self)


class RecentButton(IconButton):
    """Opens the list of recent projects. Missing folders are marked; each can be removed from the list."""

    list_opened = Signal()
    chosen = Signal(str)
    removed = Signal(str)

    def __init__(self, theme: Theme, parent: QWidget) -> None:
        super().__init__(theme, "chevron", self.tr("Recent projects"), self._open)
        self.setParent(parent)
        self._projects: Sequence[tuple[RecentProject, bool]] = ()
        self._popup: SearchPopup | None = None
        self.setEnabled(False)

    def show_projects(self, projects: Sequence[tuple[RecentProject, bool]]) -> None:
        """Show these projects; each comes with whether its folder is missing."""
        self._projects = projects
        self.setEnabled(bool(projects))
        if self._popup is not None:
            self._popup.show_entries(self._entries())

    def _entries(self) -> list[Entry]:
        missing, remove = self.tr("Not found: {folder}"), self.tr("Remove")
        return [
            Entry(
                project.folder,
                Path(project.folder).name or project.folder,
                missing.format(folder=project.folder) if is_missing else project.folder,
                action=remove,
            )
            for project, is_missing in self._projects
        ]

    def _open(self) -> None:
        words = self.tr("Recent projects")
        popup = self._popup = SearchPopup(self._theme, words, self.tr("Search recent projects"), self.window())
        popup.destroyed.connect(self._on_closed)
        popup.chosen.connect(self.chosen)
        popup.acted.connect(self.removed)
        popup.show_entries(self._entries())
        popup.open_over(self.window())
        self.list_opened.emit()

    def _on_closed(self) -> None:
        self._popup = None


class HistoryPanel(QWidget):
    """The sessions of a project. A click or Enter opens one, Delete deletes it."""

    chosen = Signal(str)
    delete_pressed = Signal(str)

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._sessions: Sequence[SessionSummary] = ()
        self._current = ""
        self.heading = label(self.tr("No sessions yet"), "strong")
        self.delete = IconButton(theme, "trash", self.tr("Delete session"), self._delete_selected)
        self.list = QListWidget()
        self.list.setAccessibleName(self.tr("Sessions"))
        self.list.setTextElideMode(Qt.TextElideMode.ElideRight)
        self.list.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.list.setSpacing(2)
        self.list.itemClicked.connect(self._choose)
        self.list.itemActivated.connect(self._choose)
        self.list.currentItemChanged.connect(lambda *_: self._show_delete())
        shortcut = QShortcut(QKeySequence(QKeySequence.StandardKey.Delete), self.list)
        shortcut.setContext(Qt.ShortcutContext.WidgetShortcut)
        shortcut.activated.connect(self._delete_selected)
        column = stack(row(self.heading, 1, self.delete), spacing=8, margins=(8, 8, 8, 8))
        column.addWidget(self.list, 1)
        self.setLayout(column)
        self._show_delete()

    def show_sessions(self, sessions: Sequence[SessionSummary], current: str) -> None:
        """Show these sessions; `current` is the id of the current one."""
        if (sessions, current) != (self._sessions, self._current):
            self._sessions, self._current = sessions, current
            when_released(self, self._refresh)

    def _refresh(self) -> None:
        selected = self._selected()
        self.list.clear()
        for session in self._sessions:
            item = QListWidgetItem(f"{session.title}\n{self._facts(session)}", self.list)
            item.setToolTip(formatted.plain_tip("\n".join([session.title, *session.changed_files])))
            item.setData(_ID, session.session_id)
            if session.session_id == selected:
                self.list.setCurrentItem(item)
        words = formatted.sessions(len(self._sessions)) if self._sessions else self.tr("No sessions yet")
        self.heading.setText(words)
        self._show_delete()

    def _facts(self, session: SessionSummary) -> str:
        facts = [formatted.moment(session.begun_at), formatted.requests(session.num_turns)]
        if session.session_id == self._current:
            facts.insert(0, self.tr("Current session"))
        if session.changed_files:
            names = ", ".join(session.changed_files[:_MOST_NAMES])
            more = len(session.changed_files) - _MOST_NAMES
            facts.append(self.tr("changed: {files}").format(files=names + (f" +{more}" if more > 0 else "")))
        return " · ".join(facts)

    def _selected(self) -> str:
        item = self.list.currentItem()
        return str(item.data(_ID)) if item is not None else ""

    def _show_delete(self) -> None:
        self.delete.setEnabled(self.list.currentItem() is not None)

    def _choose(self, item: QListWidgetItem) -> None:
        self.chosen.emit(str(item.data(_ID)))

    def _delete_selected(self) -> None:
        if selected := self._selected():
            self.delete_pressed.emit(selected)


class ReadingBar(QFrame):
    """Replaces the input field while an earlier session is shown."""

    continued = Signal()
    closed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("kind", "card")
        self.session: SessionRecord | None = None
        self.words = label("", wrap=True)
        self.go_on = button(self.tr("Continue this session"), self.continued.emit, "primary")
        self.close_button = button(self.tr("Back to the current session"), self.closed.emit)
        buttons = Flow()
        for each in (self.close_button, self.go_on):
            buttons.add(each)
        self.setLayout(stack(self.words, buttons, spacing=8, margins=(12, 12, 12, 12)))

    def show_session(self, session: SessionRecord | None) -> None:
        """Show the date of a session; None: no earlier session is shown."""
        self.session = session
        if session is not None:
            words = self.tr("You are reading the session of {date}.")
            self.words.setText(words.format(date=formatted.moment(session.begun_at)))
        self.setVisible(session is not None)
