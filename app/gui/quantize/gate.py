"""The choice of a task that the new file must do as well as the original before it is kept."""

from PySide6.QtWidgets import QFileDialog

from app.gui.quantize.path_choice import PATH, PathChoice

_GATES: tuple[tuple[str | None, str, str], ...] = (
    (None, "Keep it without a task", "The file is compared with the original on text alone."),
    (
        "certify",
        "Check tool calls before keeping it",
        "Some thirty calls are asked of the original and of the new file. What is clearly worse is not kept.",
    ),
    (
        "evaluate",
        "Check programs before keeping it",
        "Fifty programs are asked of both and run here in a sandbox, without network and without your files.",
    ),
    (
        PATH,
        "Check my own tasks before keeping it…",
        "A text file with one task on a line, as JSON: prompt, and answer or regex.",
    ),
)


class GateChoice(PathChoice):
    """`value` is a task by its name or the whole path of a file; None: nothing is checked."""

    def __init__(self) -> None:
        super().__init__(self.tr("Check a task before keeping it"), _GATES)

    def dialog(self) -> QFileDialog:
        """A file of tasks."""
        made = QFileDialog(self, self.tr("A file of tasks"))
        made.setFileMode(QFileDialog.FileMode.ExistingFile)
        made.setNameFilters([self.tr("Tasks (*.jsonl *.json)"), self.tr("All files (*)")])
        return made

    def words(self, name: str) -> str:
        """Named after its file."""
        return self.tr("Check {name} before keeping it").format(name=name)
