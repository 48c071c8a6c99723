"""Marks the recommended model of a list and explains why."""

from PySide6.QtCore import QCoreApplication

from app.gui import formatted
from app.gui.widgets.basics import label
from app.gui.widgets.flow import Flow
from engine.api.hub import Proposal

_USUAL_BITS_S = 100e6


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
        "reading_speed": _tr("Fits, and writes at reading speed"),
        "quickest": _tr("Fits, and is the fastest of these on this computer"),
        "smallest": _tr("Small and fast. A good first model."),
    }
    return texts[proposal.recommended]


def want_words(proposal: Proposal) -> str:
    """What people choose the model for, else its purpose."""
    texts = {
        "fast": _tr("Fast: short questions, older computers"),
        "balanced": _tr("Balanced: a good all-rounder"),
        "pictures": _tr("Sees pictures: photos and screenshots too"),
    }
    return texts.get(proposal.want) or formatted.job(proposal.starter.job)


def download_words(num_bytes: int) -> str:
    """How long the download takes on a usual connection."""
    seconds = num_bytes * 8 / _USUAL_BITS_S
    return _tr("download about {time} at 100 Mbit/s").format(time=formatted.duration(seconds))


def download_name(proposal: Proposal) -> str:
    """Accessible name of its download button."""
    return _tr("Download {name}").format(name=formatted.model_name(proposal.starter.repo))


def _tr(text: str) -> str:
    return QCoreApplication.translate("recommended", text)
