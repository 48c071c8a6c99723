"""Results as files: a picture of the plots, llama-bench's columns, or everything as JSON."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from PySide6.QtGui import QPainter, QPixmap
from PySide6.QtWidgets import QWidget

from engine.api.measuring import BenchResult
from engine.placement.measurements.results import to_csv


def image(widgets: Sequence[QWidget]) -> QPixmap:
    """The widgets below each other, as they look now."""
    ratio = widgets[0].devicePixelRatioF()
    width = max(w.width() for w in widgets)
    height = sum(w.height() for w in widgets)
    made = QPixmap(round(width * ratio), round(height * ratio))
    made.setDevicePixelRatio(ratio)
    made.fill()
    painter = QPainter(made)
    top = 0
    for widget in widgets:
        painter.drawPixmap(0, top, widget.grab())
        top += widget.height()
    painter.end()
    return made


def write(path: Path, results: Sequence[BenchResult]) -> None:
    """CSV or JSON, by the file's ending. Raises: OSError."""
    if path.suffix.lower() == ".csv":
        tables = [to_csv(result) for result in results]
        head, *_ = tables[0].partition("\n")
        rows = [table.partition("\n")[2] for table in tables]
        path.write_text(f"{head}\n{''.join(rows)}", encoding="utf-8")
    else:
        plain = [{k: v for k, v in msgspec.structs.asdict(result).items() if k != "id"} for result in results]
        path.write_bytes(msgspec.json.format(msgspec.json.encode(plain)))
