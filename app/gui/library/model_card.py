"""The card of one model on this computer."""

from collections.abc import Collection
from pathlib import PurePath

from PySide6.QtCore import QCoreApplication, QDateTime, Qt, Signal
from PySide6.QtWidgets import QFrame, QPushButton

from app.gui import formatted
from app.gui.library.sources import repository_of_original, unfit
from app.gui.reasons import translated
from app.gui.theme import Theme
from app.gui.widgets.basics import IconButton, LabelKind, button, label, row, stack
from app.gui.widgets.flow import Flow
from app.gui.widgets.popups import Menu
from app.gui.widgets.tensor_mosaic import Mosaic, tiles_of_types
from engine.api.library import Model, Origin

# Pass rate in the tool-call evaluation from which a model suits coding agents.
_GOOD = 0.8
_LARGE = 20  # pixels of body text
_CAN = {
    "vision": "vision",
    "tools": "tool calls",
    "reasoning": "reasoning",
    "fim": "code completion",
    "embedding": "embeddings",
    "rerank": "reranking",
}


class ModelCard(QFrame):
    """Facts and actions of a model. Signals carry the model's id."""

    chat_pressed = Signal(str)
    fit_pressed = Signal(str)
    original_pressed = Signal(str)  # the repository
    verify_pressed = Signal(str)
    remove_pressed = Signal(str, str)
    details_pressed = Signal(str)
    locate_pressed = Signal(str)
    folder_pressed = Signal(str)
    settings_pressed = Signal(str, str)
    rename_pressed = Signal(str, str)
    update_pressed = Signal(str)

    def __init__(
        self, theme: Theme, model: Model, tool_calls_frac: float | None = None, newer_bytes: int = 0
    ) -> None:
        """Create the card. `newer_bytes`: download size of a newer version on the hub; 0: none is known."""
        super().__init__()
        self.setProperty("kind", "card")
        self.model = model
        self._theme = theme
        name, identity = model.name, model.id
        mosaic = Mosaic(theme, height=48)
        mosaic.setFixedSize(80, 56)
        mosaic.show_tiles(tiles_of_types(model.details.type_bytes, 40))
        title = label(spoken_name(model), "strong", wrap=True, tip=model.path)
        facts = label(facts_of(model), "small", wrap=True)
        chips = Flow(spacing=4)
        for words_, kind in chips_of(model, tool_calls_frac):
            chips.add(label(words_, kind))
        self._loaded = label(self.tr("loaded"), "chip-ok")
        self._loaded.hide()
        chips.add(self._loaded)
        chat = button(self.tr("Chat"), lambda: self.chat_pressed.emit(identity), "primary")
        fit = button(self.tr("Make it fit"), lambda: self.fit_pressed.emit(identity))
        usable = model.state == "online"
        can_chat = model.format == "gguf" and {"chat", "completion"} & set(model.capabilities)
        chat.setEnabled(bool(usable and can_chat))
        fit.setEnabled(not unfit(model))
        fit.setToolTip(formatted.plain_tip(unfit(model)))
        self._lead_to_original(fit)
        update = button(self.tr("Update"), lambda: self.update_pressed.emit(identity))
        keeps = self.tr("Downloads {size}. This version is kept until the newer one works.")
        update.setToolTip(formatted.plain_tip(keeps.format(size=formatted.size(newer_bytes))))
        if newer_bytes:
            chips.add(label(self.tr("Newer version on the hub"), "chip-ok"))
        for control, verb in (
            (update, self.tr("Update {name}")),
            (chat, self.tr("Chat with {name}")),
            (fit, self.tr("Make {name} fit")),
        ):
            control.setAccessibleName(verb.format(name=name))
        more = IconButton(theme, "more", self.tr("More about {name}").format(name=name), lambda: self._menu(more))
        published = label(publication_text(model), "small", wrap=True)
        text = stack(title, facts, *((published,) if published.text() else ()), chips, spacing=4)
        line = row(spacing=16)
        line.addWidget(mosaic, 0, Qt.AlignmentFlag.AlignTop)
        line.addLayout(text, 1)
        # With large text there is no space for buttons next to the text.
        whole = stack(line, spacing=12, margins=(16, 16, 12, 16))
        buttons = stack(spacing=0) if theme.tokens.body < _LARGE else whole
        if buttons is not whole:
            line.addLayout(buttons)
        if model.state == "missing":
            locate = button(self.tr("Locate…"), lambda: self.locate_pressed.emit(identity), "primary")
            remove = button(self.tr("Remove"), lambda: self.remove_pressed.emit(identity, name))
            buttons.addLayout(row(locate, remove, more, spacing=8))
        else:
            buttons.addLayout(
                row(*((update,) if newer_bytes else ()), chat, fit, more, 1 if buttons is whole else 0, spacing=8)
            )
        self.setLayout(whole)

    def _lead_to_original(self, fit: QPushButton) -> None:
        """Let the button of a model that is quantized already show where its original is."""
        original = repository_of_original(self.model)
        if original:
            fit.clicked.disconnect()
            fit.clicked.connect(lambda: self.original_pressed.emit(original))
            fit.setEnabled(True)
            fit.setToolTip(self.tr("Downloads the original first. Shows what that takes before it begins."))

    def mark_loaded(self, *, loaded: bool) -> None:
        """Show whether the model is in memory."""
        self._loaded.setVisible(loaded)

    def _menu(self, at: IconButton) -> None:
        identity, name, path = self.model.id, self.model.name, self.model.path
        menu = Menu(self._theme, self)
        menu.add("info", self.tr("Details"), lambda: self.details_pressed.emit(identity))
        load = menu.add("sliders", self.tr("Load settings…"), lambda: self.settings_pressed.emit(identity, name))
        load.setEnabled(self.model.state == "online" and self.model.format != "safetensors")
        menu.add("edit", self.tr("Rename…"), lambda: self.rename_pressed.emit(identity, name))
        menu.add("check", self.tr("Check the file"), lambda: self.verify_pressed.emit(identity))
        show = menu.add("folder", self.tr("Show in folder"), lambda: self.folder_pressed.emit(path))
        show.setEnabled(self.model.state != "missing" and bool(path))
        menu.addSeparator()
        remove = menu.add("trash", self.tr("Remove…"), lambda: self.remove_pressed.emit(identity, name), "bad")
        remove.setEnabled(self.model.origin.kind not in {"bundled", "installed"})
        menu.below(at)


def spoken_name(model: Model) -> str:
    """The display name. A mere file name loses its format suffixes, which the line below shows."""
    file = PurePath(model.path).name.removesuffix(".gguf")
    if model.name != file or not model.details.quantization:
        return model.name
    return formatted.model_name(model.name).replace("_", " ") or model.name


def facts_of(model: Model) -> str:
    """One line: size and context first, then precision and architecture."""
    details = model.details
    parts = [formatted.size(model.size_bytes)]
    if details.n_params:
        parts.append(_tr("{n} parameters").format(n=formatted.count(details.n_params)))
    if details.context_train:
        parts.append(_tr("context {n}").format(n=formatted.whole(details.context_train)))
    if details.quantization:
        parts.append(details.quantization)
    if model.bits_per_weight:
        parts.append(_tr("{n} bits per weight").format(n=formatted.decimal(model.bits_per_weight, 2)))
    parts.append(details.architecture or model.format)
    return " · ".join(parts)


def capability_text(name: str) -> str:
    """The name of a capability."""
    plain = {"chat": _tr("chat"), "completion": _tr("completion")}
    return _tr(_CAN[name]) if name in _CAN else plain.get(name, name)


def ability_texts(names: Collection[str]) -> list[str]:
    """The special abilities among these, in the order of the cards."""
    return [_tr(words) for name, words in _CAN.items() if name in names]


def publication_text(model: Model) -> str:
    """Publisher, licence and the day on which the model was added, as far as known."""
    parts = []
    if model.origin.repo:
        parts.append(_tr("by {publisher}").format(publisher=model.origin.repo.partition("/")[0]))
    if model.details.license:
        parts.append(model.details.license)
    if model.added_at and model.origin.kind not in {"bundled", "installed", "remote"}:
        day = QDateTime.fromSecsSinceEpoch(int(model.added_at)).date()
        parts.append(_tr("added {date}").format(date=formatted.date(day)))
    return " · ".join(parts)


_APPS = {"lmstudio": "LM Studio", "ollama": "Ollama", "jan": "Jan", "huggingface": "Hugging Face"}


def app_title(app: str) -> str:
    """The name of another application, as it writes it."""
    return _APPS.get(app, app)


def origin_text(origin: Origin) -> str:
    """A model's origin: repository or owning application if known."""
    return (
        origin.repo
        or app_title(origin.app or "")
        or {
            "bundled": _tr("Included with Tessera"),
            "installed": _tr("Included with Tessera"),
            "built": _tr("Created on this computer"),
            "linked": _tr("Linked"),
            "file": _tr("A file on this computer"),
            "hub": "Hugging Face",
            "remote": _tr("Another server"),
        }.get(origin.kind, origin.kind)
    )


def chips_of(model: Model, tool_calls_frac: float | None = None) -> list[tuple[str, LabelKind]]:
    """Chips for the model's state and special properties."""
    chips: list[tuple[str, LabelKind]] = []
    state, origin = model.state, model.origin
    if state == "offline":
        chips.append((_tr("Offline: its drive is not connected"), "chip-warn"))
    elif state == "missing":
        chips.append((_tr("Its file was moved or deleted"), "chip-warn"))
    elif state in {"broken", "changed"}:
        chips.append((translated(model.problem_detail, model.problem or "") or _tr("The file changed"), "chip-bad"))
    if origin.kind == "bundled":
        chips.append((_tr("Demo model"), "chip"))
    elif origin.kind == "installed":
        chips.append((_tr("Included with Tessera"), "chip"))
    elif origin.kind == "built":
        chips.append((_tr("Created on this computer"), "chip-ok"))
    elif origin.kind == "linked":
        words = _tr("Linked from {app}").format(app=app_title(origin.app)) if origin.app else _tr("Linked")
        chips.append((words, "chip"))
    if tool_calls_frac is not None:
        share = f"{formatted.whole(100 * tool_calls_frac)}\u00a0%"
        chips.append(
            (
                _tr("Tool calls {share}").format(share=share),
                "chip-ok" if tool_calls_frac >= _GOOD else "chip",
            )
        )
    chips.extend((_tr(_CAN[name]), "chip") for name in model.capabilities if name in _CAN)
    return chips


def _tr(text: str) -> str:
    return QCoreApplication.translate("library", text)
