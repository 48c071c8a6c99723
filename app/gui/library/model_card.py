"""One model on this computer."""

from typing import Any

from PySide6.QtCore import QCoreApplication, QPoint, Qt, Signal
from PySide6.QtWidgets import QFrame, QMenu

from app.gui import words
from app.gui.look import Look
from app.gui.widgets.basics import IconButton, LabelKind, button, label, row, stack
from app.gui.widgets.flow import Flow
from app.gui.widgets.mosaic import Mosaic, tiles_of_types

# Share of the certificate's cases from which a model is fit for coding agents.
_GOOD = 0.8
_CAN = ("vision", "tools", "reasoning", "fim", "embedding", "rerank")


class ModelCard(QFrame):
    """Facts and actions; signals carry the model's id."""

    chat_pressed = Signal(str)
    fit_pressed = Signal(str)
    verify_pressed = Signal(str)
    remove_pressed = Signal(str, str)
    details_pressed = Signal(str)

    def __init__(self, look: Look, model: dict[str, Any]) -> None:
        super().__init__()
        self.setProperty("kind", "card")
        self.model = model
        name, identity = model["name"], model["id"]
        details = model.get("details") or {}
        mosaic = Mosaic(look, height=48)
        mosaic.setFixedSize(80, 56)
        mosaic.show_tiles(tiles_of_types(details.get("type_bytes") or {}, 40))
        title = label(name, "strong")
        facts = label(facts_of(model), "small", wrap=True)
        chips = Flow(spacing=4)
        for words_, kind in chips_of(model):
            chips.add(label(words_, kind))
        chat = button(self.tr("Chat"), lambda: self.chat_pressed.emit(identity), "primary")
        fit = button(self.tr("Make it fit"), lambda: self.fit_pressed.emit(identity))
        usable = model.get("state", "online") == "online"
        can_chat = model.get("format") == "gguf" and {"chat", "completion"} & set(model.get("capabilities") or ())
        chat.setEnabled(bool(usable and can_chat))
        fit.setEnabled(usable)
        for made, verb in ((chat, self.tr("Chat with {name}")), (fit, self.tr("Make {name} fit"))):
            made.setAccessibleName(verb.format(name=name))
        more = IconButton(look, "more", self.tr("More about {name}").format(name=name), lambda: self._menu(more))
        text = stack(title, facts, chips, spacing=4)
        line = row(spacing=16, margins=(16, 16, 12, 16))
        line.addWidget(mosaic, 0, Qt.AlignmentFlag.AlignTop)
        line.addLayout(text, 1)
        line.addLayout(row(chat, fit, more, spacing=8))
        self.setLayout(line)

    def _menu(self, at: IconButton) -> None:
        identity = self.model["id"]
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.addAction(self.tr("Details"), lambda: self.details_pressed.emit(identity))
        menu.addAction(self.tr("Check the file"), lambda: self.verify_pressed.emit(identity))
        menu.addSeparator()
        remove = menu.addAction(self.tr("Remove…"), lambda: self.remove_pressed.emit(identity, self.model["name"]))
        remove.setEnabled(self.model.get("origin", {}).get("kind") != "bundled")
        menu.popup(at.mapToGlobal(QPoint(0, at.height())))


def facts_of(model: dict[str, Any]) -> str:
    """Parameters, precision, size, context: one line."""
    details = model.get("details") or {}
    parts = [str(details.get("architecture") or model.get("format"))]
    if details.get("n_params"):
        parts.append(_tr("{n} parameters").format(n=words.count(details["n_params"])))
    if model.get("bits_per_weight"):
        parts.append(_tr("{n} bits").format(n=words.decimal(model["bits_per_weight"], 2)))
    if details.get("quantization"):
        parts.append(str(details["quantization"]))
    parts.append(words.size(model.get("size_bytes") or 0))
    if details.get("context_train"):
        parts.append(_tr("context {n}").format(n=words.whole(details["context_train"])))
    return " · ".join(parts)


def chips_of(model: dict[str, Any]) -> list[tuple[str, LabelKind]]:
    """What sets a model apart."""
    made: list[tuple[str, LabelKind]] = []
    state, origin = model.get("state", "online"), model.get("origin") or {}
    if state == "offline":
        made.append((_tr("Offline: its drive is not connected"), "chip-warn"))
    elif state in {"broken", "changed"}:
        made.append((str(model.get("problem") or _tr("The file changed")), "chip-bad"))
    if origin.get("kind") == "bundled":
        made.append((_tr("Demo, comes with Tessera"), "chip"))
    elif origin.get("kind") == "built":
        made.append((_tr("Made here"), "chip-ok"))
    elif origin.get("kind") == "linked":
        made.append((_tr("Linked from {app}").format(app=origin.get("app") or "?"), "chip"))
    if "tool_calls_frac" in model:
        share = f"{model['tool_calls_frac']:.0%}"
        made.append(
            (
                _tr("Tool calls {share}").format(share=share),
                "chip-ok" if model["tool_calls_frac"] >= _GOOD else "chip",
            )
        )
    made.extend((name, "chip") for name in model.get("capabilities") or () if name in _CAN)
    return made


def _tr(text: str) -> str:
    return QCoreApplication.translate("library", text)
