"""Results as files: a picture of the plots, llama-bench's columns, or everything as JSON."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from PySide6.QtGui import QPainter, QPixmap
from PySide6.QtWidgets import QWidget

from engine.bench.results import to_csv
from engine.bench.types import Report


def picture(widgets: Sequence[QWidget]) -> QPixmap:
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


def write(path: Path, results: Sequence[dict[str, Any]]) -> None:
    """CSV or JSON, by the file's ending. Raises: OSError."""
    if path.suffix.lower() == ".csv":
        tables = [to_csv(msgspec.convert(result, Report)) for result in results]
        head, *_ = tables[0].partition("\n")
        rows = [table.partition("\n")[2] for table in tables]
        path.write_text(f"{head}\n{''.join(rows)}", encoding="utf-8")
    else:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(list(results))))
