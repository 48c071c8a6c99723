"""Reviews proposed edits: a list with check boxes, and the diff of the selected edit."""

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QListWidget, QListWidgetItem, QSplitter, QWidget

from app.code.diff_rows import file_change, text_with
from app.code.edits.session import FileProposal, Proposal
from app.code.edits.types import Applied, Hunk, Refused
from app.gui.app_context import AppContext
from app.gui.code.side_by_side import DiffRow, SideBySide, diff_rows
from app.gui.widgets.basics import button, label, row, stack

_ID = Qt.ItemDataRole.UserRole


class ReviewPanel(QWidget):
    """Shows a proposal. Files are written only when the user presses Apply."""

    apply_pressed = Signal(list)
    undo_pressed = Signal()
    shown_in_file = Signal(str)

    def __init__(self, services: AppContext) -> None:
        super().__init__()
        self._services = services
        self._files: dict[int, FileProposal] = {}
        self.hunks = QListWidget()
        self.hunks.setAccessibleName(self.tr("Edits"))
        self.hunks.currentItemChanged.connect(lambda *_: self._show_current())
        self.hunks.itemChanged.connect(lambda _: self._count())
        self.diff = SideBySide(services.theme)
        self.heading = label(self.tr("No edits yet"), "strong")
        self.apply = button(self.tr("Apply"), lambda: self.apply_pressed.emit(self.chosen), "primary")
        self.apply.setEnabled(False)
        self.undo = button(self.tr("Undo"), self.undo_pressed.emit)
        self.undo.setEnabled(False)
        split = QSplitter(Qt.Orientation.Vertical)
        split.setHandleWidth(1)
        split.addWidget(self.hunks)
        split.addWidget(self.diff)
        split.setStretchFactor(1, 3)
        self.in_file = button(self.tr("Show in the file"), self._show_in_file)
        self.in_file.setEnabled(False)
        column = stack(row(self.heading, 1, self.in_file, self.undo, self.apply), margins=(8, 8, 8, 8))
        column.addWidget(split, 1)
        self.setLayout(column)

    @property
    def chosen(self) -> list[int]:
        """Ids of the checked edits."""
        items = (self.hunks.item(number) for number in range(self.hunks.count()))
        return [
            item.data(_ID) for item in items if item.checkState() == Qt.CheckState.Checked and item.data(_ID) >= 0
        ]

    def show_proposal(self, proposal: Proposal) -> None:
        """Show a proposal. The edits of a file are checked if all of them can be applied."""
        self._show(proposal, frozenset())

    def show_remaining(self, proposal: Proposal) -> None:
        """Show what is left of the proposal. Edits that the user did not choose stay so."""
        left = [self.hunks.item(number) for number in range(self.hunks.count())]
        unchecked = {
            self._files[item.data(_ID)].outcome(item.data(_ID)).hunk
            for item in left
            if item.data(_ID) >= 0 and item.checkState() == Qt.CheckState.Unchecked
        }
        self._show(proposal, frozenset(unchecked))

    def _show(self, proposal: Proposal, unchecked: frozenset[Hunk]) -> None:
        self.hunks.clear()
        self._files = {hunk_id: file for file in proposal.files for hunk_id in file.hunk_ids}
        for hunk_id, file in sorted(self._files.items()):
            outcome = file.outcome(hunk_id)
            applied = outcome if isinstance(outcome, Applied) else outcome.offer
            if applied is not None:
                note = "" if applied.match == "exact" else self.tr(" (differs in %1)").replace("%1", applied.match)
                lines = str(applied.first) if applied.last <= applied.first else f"{applied.first}–{applied.last}"
                item = self._item(f"{file.path}{file_change(applied.hunk)}  {lines}{note}", hunk_id)
                item.setFlags(item.flags() | Qt.ItemFlag.ItemIsUserCheckable)
                is_chosen = hunk_id in proposal.applicable and outcome.hunk not in unchecked
                item.setCheckState(Qt.CheckState.Checked if is_chosen else Qt.CheckState.Unchecked)
            elif isinstance(outcome, Refused):
                self._item(f"{file.path}: {self.tr('refused')}: {outcome.reason}", -1)
        for malformed in proposal.malformed:
            self._item(f"{malformed.path or self.tr('an edit')}: {malformed.reason}", -1)
        self._count()
        if self.hunks.count():
            self.hunks.setCurrentRow(0)
        else:
            self.diff.show_rows([])

    def clear(self) -> None:
        """Show no edits."""
        self.show_proposal(Proposal(files=(), malformed=()))

    def _item(self, text: str, hunk_id: int) -> QListWidgetItem:
        shown = "".join(char if char.isprintable() else "�" for char in text)
        item = QListWidgetItem(shown, self.hunks)
        item.setToolTip(shown)
        item.setData(_ID, hunk_id)
        if hunk_id < 0:
            item.setFlags(Qt.ItemFlag.ItemIsEnabled)
        return item

    def _show_in_file(self) -> None:
        item = self.hunks.currentItem()
        file = self._files.get(item.data(_ID)) if item is not None else None
        if file is not None:
            self.shown_in_file.emit(file.path)

    def _count(self) -> None:
        total, chosen = len(self._files), len(self.chosen)
        words = self.tr("%1 of %2 edits chosen").replace("%1", str(chosen)).replace("%2", str(total))
        self.heading.setText(words if self.hunks.count() else self.tr("No edits yet"))
        self.apply.setEnabled(chosen > 0)

    def _show_current(self) -> None:
        item = self.hunks.currentItem()
        file = self._files.get(item.data(_ID)) if item is not None else None
        self.in_file.setEnabled(file is not None)
        if file is None:
            self.diff.show_rows([])
            return
        hunk_id = item.data(_ID)

        def work() -> list[DiffRow]:
            before, after = text_with(file, (hunk_id,))
            return diff_rows(file.path, before, after)

        def show(rows: list[DiffRow]) -> None:
            current = self.hunks.currentItem()
            if current is not None and current.data(_ID) == hunk_id:
                self.diff.show_rows(rows)

        self._services.background.run(work, show, parent=self)
