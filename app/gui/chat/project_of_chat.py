"""The project of the open chat, and the user's actions on projects.

The instructions are reloaded when a chat opens and after each response.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QWidget

from app.db import conversations
from app.db.records import Conversation, Folder
from app.gui.app_context import AppContext
from app.gui.reasons import error_message
from app.gui.widgets.basics import Banner
from app.projects import folder_of, instructions_of

if TYPE_CHECKING:
    from app.gui.chat.project_dialog import ProjectDialog
    from app.tools.catalogue import Offered


class ProjectOfChat(QObject):
    """`instructions` and `folder` are the last loaded values. `changed` is emitted if the instructions differ."""

    changed = Signal()

    def __init__(self, services: AppContext, parent: QObject) -> None:
        super().__init__(parent)
        self._services = services
        self._folder_id: int | None = None
        self.instructions = ""
        self.folder = Path.home()

    def follow(self, conversation: Conversation) -> None:
        previous, folder_id = self._folder_id, conversation.folder_id
        self._folder_id = folder_id
        if folder_id is None or folder_id != previous:
            self._show("", Path.home())  # a message sent immediately must not get another project's
        if folder_id is None:
            return

        def find(connection: Any) -> Folder | None:
            return next((folder for folder in conversations.folders(connection) if folder.id == folder_id), None)

        def read(folder: Folder | None) -> None:
            def work() -> tuple[str, Path]:
                return (instructions_of(folder) if folder is not None else "", folder_of(folder))

            def show(project: tuple[str, Path]) -> None:
                if self._folder_id == folder_id:
                    self._show(*project)

            self._services.background.run(work, show, None, self, newest="project")

        self._services.background.watch(self._services.store.submit(find), read, None, self)

    def _show(self, instructions: str, folder: Path) -> None:
        self.folder = folder
        if instructions != self.instructions:
            self.instructions = instructions
            self.changed.emit()


class Projects(QObject):
    """Project actions. `began` carries an empty conversation with a project's model, settings and tools."""

    began = Signal(object)
    changed = Signal()

    def __init__(self, services: AppContext, banner: Banner, window: QWidget) -> None:
        super().__init__(window)
        self._services, self._banner, self._window = services, banner, window
        self.dialog: ProjectDialog | None = None

    def edit(self, folder_id: int) -> None:
        def read(folder: Folder) -> "tuple[Folder, list[Offered]]":
            from app.tools.catalogue import offered

            return folder, offered(window=True)

        def show(content: "tuple[Folder, list[Offered]]") -> None:
            from app.gui.chat.project_dialog import ProjectDialog

            self.dialog = ProjectDialog(self._services, *content, self._window)
            self.dialog.saved.connect(lambda fields: self._save(folder_id, fields))
            self.dialog.open()

        self._with(folder_id, read, show)

    def begin(self, folder_id: int, empty: Conversation) -> None:
        """Start a chat in a project. `empty` is a new chat without a project."""

        def made(folder: Folder) -> Conversation:
            return Conversation(
                0,
                folder_id=folder.id,
                model=folder.model or empty.model,
                system_prompt=empty.system_prompt,
                sampling={**empty.sampling, **folder.sampling},
                tools=folder.tools,
            )

        self._with(folder_id, made, self.began.emit)

    def _save(self, folder_id: int, fields: dict[str, object]) -> None:
        future = self._services.store.submit(conversations.update_folder, folder_id, **fields)
        self._services.background.watch(future, lambda _: self.changed.emit(), self._failed, self)

    def _with(self, folder_id: int, work: Any, done: Any) -> None:
        def find(connection: Any) -> Folder:
            return next(folder for folder in conversations.folders(connection) if folder.id == folder_id)

        def go_on(folder: Folder) -> None:
            self._services.background.run(lambda: work(folder), done, self._failed, self)

        self._services.background.watch(self._services.store.submit(find), go_on, self._failed, self)

    def _failed(self, error: Exception) -> None:
        self._banner.notify(error_message(error), "bad")
