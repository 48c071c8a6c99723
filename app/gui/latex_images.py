"""Renders LaTeX formulas as images in a child process and caches them.

A formula is shown as text until its image is ready, or if rendering fails.
"""

import json
from collections import OrderedDict
from dataclasses import dataclass

from PySide6.QtCore import QByteArray, QObject, QProcess, QTimer, Signal
from PySide6.QtSvg import QSvgRenderer

from app.latex_child import LONGEST
from devices.child_command import child_command

_MAX_CACHED = 500  # images, a few kilobytes each
_TIME_MS = 3000  # time limit per formula. Measured: ordinary formulas take 6 to 60 ms
_START_MS = 60_000  # the first formula also waits for the child process to start, on a busy computer too


@dataclass(frozen=True)
class FormulaImage:
    """A rendered formula: sizes in pixels; `ascent` is the baseline's distance from the top."""

    renderer: QSvgRenderer
    width: float
    height: float
    ascent: float


@dataclass(frozen=True)
class Formula:
    """Cache key of a rendered formula. `size` and `colour` are those of the surrounding text."""

    latex: str
    display: bool
    size: int
    colour: str


class Formulas(QObject):
    """Renders and caches formulas. `ready` is emitted when a requested image is available."""

    ready = Signal()

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self._images: OrderedDict[Formula, FormulaImage | None] = OrderedDict()
        self._queue: list[Formula] = []
        self._current: Formula | None = None
        self._child: QProcess | None = None
        self._buffer = b""
        self._number = 0
        self._watch = QTimer(self, singleShot=True)
        self._watch.timeout.connect(self._give_up)

    def get(self, formula: Formula) -> FormulaImage | None:
        """The image, or None if it is not rendered yet or cannot be rendered. A miss queues it."""
        if formula in self._images:
            self._images.move_to_end(formula)
            return self._images[formula]
        if len(formula.latex) <= LONGEST and formula not in self._queue and formula != self._current:
            self._queue.append(formula)
            QTimer.singleShot(0, self, self._next)
        return None

    def close(self) -> None:
        self._watch.stop()
        self._queue.clear()
        child, self._child = self._child, None
        if child is not None:
            child.blockSignals(True)
            child.closeWriteChannel()
            if not child.waitForFinished(500):
                child.kill()
                child.waitForFinished(10_000)
            child.deleteLater()

    def _next(self) -> None:
        if self._current is not None or not self._queue:
            return
        started = self._child is not None
        if self._child is None:
            program, *arguments = child_command("app.latex_child")
            child = QProcess(self)
            child.setStandardErrorFile(QProcess.nullDevice())
            child.readyReadStandardOutput.connect(self._on_output)
            child.finished.connect(self._on_ended)
            child.start(program, arguments)
            self._child = child
        self._current = self._queue.pop(0)
        self._number += 1
        request = self._current
        line = {"key": self._number, "latex": request.latex, "display": request.display, "size": request.size}
        self._child.write(json.dumps({**line, "colour": request.colour}).encode() + b"\n")
        self._watch.start(_TIME_MS if started else _START_MS)

    def _on_output(self) -> None:
        if self._child is None:
            return
        self._buffer += bytes(self._child.readAllStandardOutput().data())
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            answer = json.loads(line)
            if self._current is not None and answer.get("key") == self._number:
                self._store_image(self._current, _image(answer))

    def _store_image(self, formula: Formula, image: FormulaImage | None) -> None:
        self._watch.stop()
        self._current = None
        self._images[formula] = image
        while len(self._images) > _MAX_CACHED:
            self._images.popitem(last=False)
        if image is not None:
            self.ready.emit()
        self._next()

    def _give_up(self) -> None:
        """Time limit reached: show this formula as text and use a new child process from now on."""
        child, self._child = self._child, None
        if child is not None:
            child.blockSignals(True)
            child.kill()
            child.waitForFinished(2000)
            child.deleteLater()
        self._buffer = b""
        if self._current is not None:
            self._store_image(self._current, None)

    def _on_ended(self) -> None:
        """The child process crashed on a formula."""
        self._give_up()


def _image(answer: dict[str, object]) -> FormulaImage | None:
    svg = answer.get("svg")
    if not isinstance(svg, str):
        return None
    renderer = QSvgRenderer(QByteArray(svg.encode()))
    numbers = [answer.get(name) for name in ("width", "height", "ascent")]
    if not renderer.isValid() or not all(isinstance(n, int | float) and n >= 0 for n in numbers):
        return None
    width, height, ascent = (float(n) for n in numbers if isinstance(n, int | float))
    return FormulaImage(renderer, width, height, ascent)
