"""The dispatch card: where a model runs, why, and what else was weighed."""

from collections.abc import Callable
from functools import partial

from PySide6.QtCore import QCoreApplication
from PySide6.QtWidgets import QFrame, QHBoxLayout, QPushButton, QWidget

from app.format import setting
from app.gui import formatted
from app.gui.reasons import all_translated, translated
from app.gui.widgets.basics import button, card, label, row, stack
from engine.api.machine import Alternative, ModelPlacement, PlacementAnswer

Pin = Callable[[str, str | None], object]
_ELSEWHERE = "rpc"  # the backend of devices of other computers


def placement_card(model: str, title: str, answer: PlacementAnswer, pin: Pin) -> QFrame:
    """A card of one placement of the model of that id and name.

    `pin` is called with the model and the device it shall stay on; None lets Tessera choose again.
    """
    placement = answer.placement
    head = row(label(title, "strong"), label(_where(placement), "chip"))
    if answer.pinned:
        head.addWidget(label(_tr("Pinned"), "chip-ok"))
    head.addStretch(1)
    if answer.pinned:
        head.addWidget(_button(_tr("Let Tessera choose"), model, partial(pin, model, None)))
    else:
        head.addWidget(_button(_tr("Pin to this device"), model, partial(pin, model, pin_name(placement))))
    column = stack(head, spacing=6)
    facts = _facts(placement)
    if facts:
        column.addWidget(label(facts, "small", wrap=True))
    for reason in all_translated(placement.reason_details, placement.reasons):
        column.addWidget(label(f"• {_sentence(reason)}", "", wrap=True))
    if placement.changes:
        column.addWidget(_changes(model, placement))
    if placement.alternatives:
        column.addWidget(label(_tr("Also possible"), "small"))
    for item in placement.alternatives:
        column.addLayout(_alternative(model, item, pin))
    return card(column)


def pin_name(placement: ModelPlacement | Alternative) -> str:
    """What the server calls this device with this backend; a device of another computer has one way only."""
    return placement.device if placement.backend == _ELSEWHERE else f"{placement.device}/{placement.backend}"


def _alternative(model: str, item: Alternative, pin: Pin) -> QHBoxLayout:
    line = _where(item)
    if item.decode_tok_s:
        line += " · " + _tr("about {n} tokens/s").format(n=formatted.whole(item.decode_tok_s))
    reason = translated(item.reason_detail, item.reason)
    text = label(f"{line}: {reason}" if reason else line, "small", wrap=True)
    made = row(text)
    made.setStretch(0, 1)
    if item.decode_tok_s:  # without a speed it cannot run there at all
        made.addWidget(_button(_tr("Pin"), f"{model}, {_where(item)}", partial(pin, model, pin_name(item)), "link"))
    return made


def _changes(model: str, placement: ModelPlacement) -> QWidget:
    """A button that shows which step set which setting."""
    rows = QWidget()
    lines = []
    for change in placement.changes:
        reason = translated(change.reason_detail, change.reason)
        values = f"{change.field}: {setting(change.old)} → {setting(change.new)}"
        lines.append(label(f"{values} ({change.step}: {reason})", "small", wrap=True))
    rows.setLayout(stack(*lines, spacing=2))
    rows.hide()
    shows = _button(_tr("Who set what"), model, lambda: rows.setVisible(rows.isHidden()), "link")
    made = QWidget()
    made.setLayout(stack(row(shows, 1), rows, spacing=4))
    return made


def _button(text: str, what: str, run: Callable[[], object], kind: str = "") -> QPushButton:
    made = button(text, run, kind)
    made.setAccessibleName(f"{text}: {what}")
    return made


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _where(placement: ModelPlacement | Alternative) -> str:
    backend, device = placement.backend, placement.device
    if backend == device or not device:
        return _tr("Processor") if backend == "cpu" else backend
    return f"{backend} · {device}"


def _facts(placement: ModelPlacement) -> str:
    parts: list[str] = []
    if placement.n_ctx:
        parts.append(_tr("context {n}").format(n=formatted.whole(placement.n_ctx)))
    layers, threads = placement.n_gpu_layers, placement.n_threads
    if layers:
        parts.append(_tr("{n} layers on the GPU").format(n=layers))
    if threads:
        parts.append(_tr("1 thread") if threads == 1 else _tr("{n} threads").format(n=threads))
    if placement.type_k:
        parts.append(
            _tr("KV cache {k}/{v}").format(
                k=placement.type_k.upper(), v=(placement.type_v or placement.type_k).upper()
            )
        )
    if placement.decode_tok_s:
        parts.append(_tr("about {n} tokens/s expected").format(n=formatted.whole(placement.decode_tok_s)))
    if placement.tokens_per_joule:
        parts.append(_tr("{n} tokens per joule").format(n=formatted.decimal(placement.tokens_per_joule)))
    elif placement.energy:
        parts.append(translated(placement.energy_detail, placement.energy))
    return " · ".join(parts)


def _tr(text: str) -> str:
    return QCoreApplication.translate("placement", text)
