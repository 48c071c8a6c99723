"""Saved prompts: chosen from a searchable list, filled in, and inserted into the composer."""

import itertools
from collections.abc import Callable
from typing import Any

from PySide6.QtCore import QObject, Qt
from PySide6.QtWidgets import QInputDialog, QWidget

from app.db import store
from app.db.records import Prompt
from app.gui.app_context import AppContext
from app.gui.chat.composer import Composer
from app.gui.chat.message_editor import VariablesDialog
from app.gui.widgets.search_popup import Entry, SearchPopup
from app.suggestions import asked_for, filled

_SAVE = "\x00save"
_SHOWN = 90  # characters of a prompt shown in the list
_NAME = 40  # characters of the default name of a prompt


class PromptLibrary(QObject):
    """The saved prompts of one composer. "/" at the start of an empty field opens the list."""

    def __init__(self, services: AppContext, composer: Composer, model: Callable[[], str]) -> None:
        super().__init__(composer)
        self._services, self._composer, self._model = services, composer, model
        self._prompts: dict[str, Prompt] = {}
        composer.prompts_wanted.connect(self.open)

    def open(self) -> None:
        future = self._services.store.submit(store.prompts)
        self._services.background.watch(future, self._show, None, self)

    def _show(self, prompts: list[Prompt]) -> None:
        window = self._composer.window()
        palette = SearchPopup(self._services.theme, self.tr("Prompts"), self.tr("Search prompts"), window)
        self._prompts = {str(item.id): item for item in prompts}
        entries = [
            Entry(str(item.id), item.name, " ".join(item.text.split())[:_SHOWN], action=self.tr("Remove"))
            for item in prompts
        ]
        words = self.tr("Save this text as a prompt…")
        if not self._composer.text.strip():
            words = self.tr("New prompt…")
        palette.show_entries([*entries, Entry(_SAVE, words, always=True)])
        palette.chosen.connect(self._on_chosen)
        palette.acted.connect(lambda key: self._remove(int(key), palette))
        palette.open_over(window)

    def _on_chosen(self, key: str) -> None:
        if key == _SAVE:
            self._save()
            return
        chosen = self._prompts[key]
        names = asked_for(chosen.text)
        if not names:
            self._insert(chosen.text, {})
            return
        dialog = VariablesDialog(chosen.name, names, self.tr("Insert"), self._composer.window())
        dialog.accepted.connect(lambda: self._insert(chosen.text, dialog.values))
        dialog.open()

    def _insert(self, text: str, values: dict[str, str]) -> None:
        editor = self._composer.editor
        editor.insertPlainText(filled(text, values, self._model()))
        editor.setFocus()

    def _save(self) -> None:
        written = self._composer.text.strip()
        window = self._composer.window()
        if written:
            self._prompt_for_name(written, window)
            return
        dialog = QInputDialog(window)
        dialog.setWindowTitle(self.tr("New prompt"))
        dialog.setLabelText(
            self.tr("{{topic}} is asked for when it is used; {{date}}, {{time}} and {{model}} are known.")
        )
        dialog.setOption(QInputDialog.InputDialogOption.UsePlainTextEditForTextInput)
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.textValueSelected.connect(
            lambda text: self._prompt_for_name(text.strip(), window) if text.strip() else None
        )
        dialog.open()

    def _prompt_for_name(self, text: str, window: QWidget) -> None:
        dialog = QInputDialog(window)
        dialog.setWindowTitle(self.tr("Save prompt"))
        dialog.setLabelText(self.tr("Name:"))
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        # The default name is selected: typing replaces it, Enter accepts it.
        offered = self._free_name(" ".join(text.split())[:_NAME].strip())
        dialog.setTextValue(offered)

        def save(name: str) -> None:
            self._watch(self._services.store.submit(store.save_prompt, name.strip() or offered, text))

        dialog.textValueSelected.connect(save)
        dialog.open()

    def _free_name(self, preferred: str) -> str:
        """A free name: the default name with a number if it is taken, because saving would replace that prompt."""
        used = {item.name for item in self._prompts.values()}
        numbered = (f"{preferred} {number}" for number in itertools.count(2))
        return preferred if preferred not in used else next(name for name in numbered if name not in used)

    def _remove(self, prompt_id: int, palette: SearchPopup) -> None:
        palette.close()
        future = self._services.store.submit(store.remove_prompt, prompt_id)
        self._services.background.watch(future, lambda _: self.open(), None, self)

    def _watch(self, future: Any) -> None:
        self._services.background.watch(future, None, None, self)
