"""What a model is made to fit: a size of the file, or a context in the memory of this computer."""

import msgspec
from PySide6.QtCore import Signal
from PySide6.QtWidgets import QWidget

from app.gui import formatted
from app.gui.widgets.basics import label, row
from app.gui.widgets.flow import FlowLayout
from app.gui.widgets.popups import Choice
from engine.api.quantizing import DEFAULT_CONTEXT, QuantizeOptions
from quantize.kv_cache_types import K_DAMAGE

_CONTEXTS = (2048, 4096, 8192, 16384, 32768, 65536, 131072)
# What is worth saying of some of the types that engine.job_kinds.quantize.fit weighs.
_CACHE_NAMES = {"f16": "f16, exact", "q8_0": "q8_0, half as large", "q4_0": "q4_0, smallest"}


class Aim(QWidget):
    """`on` is what the server is asked for when the aim is a context."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.kind = Choice()
        self.kind.setAccessibleName(self.tr("What to aim for"))
        self.kind.addItem(self.tr("Aim for a size"))
        self.kind.addItem(self.tr("Aim for a context on this computer"))
        self.context = Choice()
        self.context.setAccessibleName(self.tr("Context in tokens"))
        for n_ctx in _CONTEXTS:
            self.context.addItem(self.tr("{n} tokens").format(n=formatted.whole(n_ctx)), n_ctx)
        self.context.setCurrentIndex(self.context.findData(DEFAULT_CONTEXT))
        self.cache = Choice()
        self.cache.setAccessibleName(self.tr("How the context is stored"))
        self.cache.addItem(self.tr("the best for it"), None)
        for name in K_DAMAGE:
            self.cache.addItem(self.tr(_CACHE_NAMES.get(name, name)), name)
        self._more = QWidget()
        stored = label(self.tr("stored in"), "small")
        self._more.setLayout(row(self.context, stored, self.cache))
        self._more.hide()
        parts = FlowLayout(self)
        parts.addWidget(self.kind)
        parts.addWidget(self._more)
        self.kind.currentIndexChanged.connect(self._on_kind)
        for box in (self.context, self.cache):
            box.currentIndexChanged.connect(lambda _: self.changed.emit())

    @property
    def is_context(self) -> bool:
        """Whether a context is aimed for."""
        return self.kind.currentIndex() == 1

    @property
    def n_ctx(self) -> int:
        """Tokens aimed for."""
        return int(self.context.currentData())

    def on(self, request: QuantizeOptions) -> QuantizeOptions:
        """The request with this aim; what is free decides the size."""
        return msgspec.structs.replace(
            request, fit=True, budget_bytes=None, n_ctx=self.n_ctx, kv_type=self.cache.currentData()
        )

    def _on_kind(self, _position: int) -> None:
        self._more.setVisible(self.is_context)
        self.changed.emit()
