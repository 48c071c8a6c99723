"""The dispatch card: where a model runs, why, and what else was weighed."""

from collections.abc import Callable
from functools import partial
from typing import Any

from PySide6.QtCore import QCoreApplication
from PySide6.QtWidgets import QFrame, QHBoxLayout

from app.gui import words
from app.gui.widgets.basics import button, card, label, row, stack

Pin = Callable[[str, str | None], object]


def placement_card(model: str, answer: dict[str, Any], pin: Pin) -> QFrame:
    """A card of one placement: fields as `engine.dispatch.Placement` has them.

    `pin` is called with the model and the device it shall stay on; None lets Tessera choose again.
    """
    placement = answer.get("placement") or answer
    pinned = answer.get("pinned")
    head = row(label(model, "strong"), label(_where(placement), "chip"))
    if pinned:
        head.addWidget(label(_tr("Pinned"), "chip-ok"))
    head.addStretch(1)
    if pinned:
        head.addWidget(_button(_tr("Let Tessera choose"), model, partial(pin, model, None)))
    else:
        head.addWidget(_button(_tr("Pin here"), model, partial(pin, model, pin_name(placement))))
    column = stack(head, spacing=6)
    facts = _facts(placement)
    if facts:
        column.addWidget(label(facts, "small", wrap=True))
    for reason in placement.get("reasons") or ():
        column.addWidget(label(f"• {_sentence(_text(reason))}", "", wrap=True))
    alternatives = placement.get("alternatives") or ()
    if alternatives:
        column.addWidget(label(_tr("Also possible"), "small"))
    for item in alternatives:
        column.addLayout(_alternative(model, item, pin))
    return card(column)


def pin_name(placement: dict[str, Any]) -> str:
    """What the server calls this device with this backend."""
    return f"{placement.get('device') or ''}/{placement.get('backend') or ''}"


def _alternative(model: str, item: dict[str, Any], pin: Pin) -> QHBoxLayout:
    line = _where(item)
    if item.get("decode_tok_s"):
        line += " · " + _tr("about {n} tokens/s").format(n=words.whole(item["decode_tok_s"]))
    why = item.get("reason") or ""
    text = label(f"{line}: {why}" if why else line, "small", wrap=True)
    made = row(text)
    made.setStretch(0, 1)
    if item.get("decode_tok_s"):  # without a speed it cannot run there at all
        made.addWidget(_button(_tr("Pin"), f"{model}, {_where(item)}", partial(pin, model, pin_name(item)), "link"))
    return made


def _button(text: str, what: str, run: Callable[[], object], kind: str = "") -> Any:
    made = button(text, run, kind)
    made.setAccessibleName(f"{text}: {what}")
    return made


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _where(placement: dict[str, Any]) -> str:
    backend, device = str(placement.get("backend") or ""), str(placement.get("device") or "")
    return backend if backend == device or not device else f"{backend} · {device}"


def _facts(placement: dict[str, Any]) -> str:
    parts: list[str] = []
    if placement.get("n_ctx"):
        parts.append(_tr("context {n}").format(n=words.whole(placement["n_ctx"])))
    layers = placement.get("n_gpu_layers") or placement.get("layers_offloaded")
    if layers:
        parts.append(_tr("{n} layers on the GPU").format(n=layers))
    threads = placement.get("n_threads") or placement.get("threads")
    if threads:
        parts.append(_tr("1 thread") if threads == 1 else _tr("{n} threads").format(n=threads))
    if placement.get("type_k"):
        parts.append(_tr("cache {k}/{v}").format(k=placement["type_k"], v=placement.get("type_v", "")))
    if placement.get("decode_tok_s"):
        parts.append(_tr("about {n} tokens/s expected").format(n=words.whole(placement["decode_tok_s"])))
    return " · ".join(parts)


def _text(reason: Any) -> str:
    return str(reason.get("text") or reason) if isinstance(reason, dict) else str(reason)


def _tr(text: str) -> str:
    return QCoreApplication.translate("placement", text)
