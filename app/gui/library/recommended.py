"""Marks the recommended model of a list and explains why."""

from PySide6.QtCore import QCoreApplication

from app.gui import formatted
from app.gui.widgets.basics import label
from app.gui.widgets.flow import Flow
from engine.api.hub import Proposal


def name_row(name: str, proposal: Proposal) -> Flow:
    """The name, with a chip if recommended. The chip wraps below the name if there is too little space."""
    made = Flow(spacing=8)
    made.add(label(name, "strong"))
    if proposal.recommended:
        made.add(label(_tr("Recommended"), "chip-ok"))
    return made


def recommendation(proposal: Proposal) -> str:
    """Why the model is recommended, or ""."""
    texts = {
        "": "",
        "reading_speed": _tr("The largest of these that fits and writes at reading speed"),
        "quickest": _tr("Fits, and is the fastest of these on this computer"),
        "smallest": _tr("The smallest of these; leaves memory free"),
    }
    return texts[proposal.recommended]


def download_name(proposal: Proposal) -> str:
    """Accessible name of its download button."""
    return _tr("Download {name}").format(name=formatted.model_name(proposal.starter.repo))


def _tr(text: str) -> str:
    return QCoreApplication.translate("recommended", text)
