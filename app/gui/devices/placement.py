"""The dispatch card: where a model runs, why, and what else was weighed."""

from typing import Any

from PySide6.QtCore import QCoreApplication
from PySide6.QtWidgets import QFrame

from app.gui import words
from app.gui.look import Look
from app.gui.widgets.basics import card, label, row, stack


def placement_card(look: Look, model: str, answer: dict[str, Any]) -> QFrame:
    """A card of one placement: fields as `engine.dispatch.Placement` has them."""
    del look
    placement = answer.get("placement") or answer
    head = row(label(model, "strong"), label(_where(placement), "chip"), 1)
    column = stack(head, spacing=6)
    facts = _facts(placement)
    if facts:
        column.addWidget(label(facts, "small", wrap=True))
    for reason in placement.get("reasons") or ():
        column.addWidget(label(f"• {_text(reason)}", "", wrap=True))
    alternatives = placement.get("alternatives") or ()
    if alternatives:
        column.addWidget(label(_tr("Also possible"), "small"))
    for item in alternatives:
        line = f"{_where(item)}"
        if item.get("decode_tok_s"):
            line += " · " + _tr("about {n} tokens/s").format(n=words.whole(item["decode_tok_s"]))
        why = item.get("why") or item.get("reason") or item.get("why_not") or ""
        column.addWidget(label(f"{line}: {why}" if why else line, "small", wrap=True))
    return card(column)


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
        parts.append(_tr("{n} threads").format(n=threads))
    if placement.get("type_k"):
        parts.append(_tr("cache {k}/{v}").format(k=placement["type_k"], v=placement.get("type_v", "")))
    if placement.get("decode_tok_s"):
        parts.append(_tr("about {n} tokens/s expected").format(n=words.whole(placement["decode_tok_s"])))
    return " · ".join(parts)


def _text(reason: Any) -> str:
    return str(reason.get("text") or reason) if isinstance(reason, dict) else str(reason)


def _tr(text: str) -> str:
    return QCoreApplication.translate("placement", text)
