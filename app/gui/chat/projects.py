"""What a person does with projects: opens their form, begins chats in them."""

from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QWidget

from app.db import conversations
from app.db.records import Conversation, Folder
from app.gui.app_context import Services
from app.gui.server_errors import error_message
from app.gui.widgets.basics import Banner

if TYPE_CHECKING:
    from app.gui.chat.project_dialog import ProjectDialog
    from app.tools.catalogue import Offered


class Projects(QObject):
    """`began` carries an empty conversation with a project's model, settings and tools."""

    began = Signal(object)
    changed = Signal()

    def __init__(self, services: Services, banner: Banner, window: QWidget) -> None:
        super().__init__(window)
        self._services, self._banner, self._window = services, banner, window
        self.dialog: ProjectDialog | None = None

    def edit(self, folder_id: int) -> None:
        """Show the form of a project."""

        def read(folder: Folder) -> "tuple[Folder, list[Offered]]":
            from app.tools.catalogue import offered  # noqa: PLC0415 - not before the window is shown

            return folder, offered()

        def show(found: "tuple[Folder, list[Offered]]") -> None:
            from app.gui.chat.project_dialog import ProjectDialog  # noqa: PLC0415 - not before the window is shown

            self.dialog = ProjectDialog(self._services, *found, self._window)
            self.dialog.saved.connect(lambda fields: self._save(folder_id, fields))
            self.dialog.open()

        self._with(folder_id, read, show)

    def begin(self, folder_id: int, empty: Conversation) -> None:
        """Begin a chat in a project; `empty` has what a chat without one would have."""

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
