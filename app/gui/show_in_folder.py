"""Showing a file in the system's file manager."""

from pathlib import Path

from PySide6.QtCore import QUrl
from PySide6.QtGui import QDesktopServices


def show_in_folder(path: str) -> None:
    """Open the folder of a file."""
    file = Path(path)
    QDesktopServices.openUrl(QUrl.fromLocalFile(str(file if file.is_dir() else file.parent)))
