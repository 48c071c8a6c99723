"""The choice of the text a file is fitted to: of all kinds, or half of it from a folder of one's own."""

from PySide6.QtWidgets import QFileDialog

from app.gui.quantize.path_choice import PATH, PathChoice

_TEXTS: tuple[tuple[str | None, str, str], ...] = (
    (None, "Fit it to text of all kinds", "Books, code and talk in many languages, which come with Tessera."),
    (
        PATH,
        "Fit it to my own text too…",
        "Half of it from a folder of yours, read on this computer only. Then you see what is gained on it.",
    ),
)


class OwnTextChoice(PathChoice):
    """`value` is a folder; None: the text that comes with the program."""

    def __init__(self) -> None:
        super().__init__(self.tr("Text it is fitted to"), _TEXTS)

    def dialog(self) -> QFileDialog:
        """A folder."""
        made = QFileDialog(self, self.tr("A folder with text of yours"))
        made.setFileMode(QFileDialog.FileMode.Directory)
        return made

    def words(self, name: str) -> str:
        """Named after its folder."""
        return self.tr("Fit it to {name} too").format(name=name)
