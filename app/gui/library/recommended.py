"""Marks the recommended model of a list and explains why."""

from PySide6.QtCore import QCoreApplication
from PySide6.QtWidgets import QWidget

from app.gui import formatted
from app.gui.app_context import AppContext
from app.gui.widgets.basics import button, label, row
from app.gui.widgets.flow import Flow
from engine.api.hub import Proposal

_USUAL_BITS_S = 100e6


def name_row(name: str, proposal: Proposal) -> Flow:
    """The name, with a chip if recommended. The chip wraps below the name if there is too little space."""
    flow = Flow(spacing=8)
    flow.add(label(name, "strong"))
    if proposal.recommended:
        flow.add(label(_tr("Recommended"), "chip-ok"))
    return flow


def recommendation(proposal: Proposal) -> str:
    """Why the model is recommended, or ""."""
    texts = {
        "": "",
        "reading_speed": _tr("Fits, and writes at reading speed"),
        "quickest": _tr("Fits, and is the fastest of these on this computer"),
        "smallest": _tr("Small and fast. A good first model."),
    }
    return texts[proposal.recommended]


def proposal_text(proposal: Proposal) -> str:
    """The main use of the model, else its purpose."""
    texts = {
        "fast": _tr("Fast: short questions, older computers"),
        "balanced": _tr("Balanced: a good all-rounder"),
        "pictures": _tr("Sees pictures: photos and screenshots too"),
    }
    return texts.get(proposal.want) or formatted.job(proposal.starter.job)


def size_of(proposal: Proposal) -> int:
    """Bytes to download: the hub's figure if it was requested, else the expected one."""
    return proposal.download_bytes or proposal.expected_bytes


def download_text(num_bytes: int) -> str:
    """How long the download takes on a usual connection."""
    seconds = num_bytes * 8 / _USUAL_BITS_S
    return _tr("download about {time} at 100 Mbit/s").format(time=formatted.duration(seconds))


def download_name(proposal: Proposal) -> str:
    """Accessible name of its download button."""
    return _tr("Download {name}").format(name=formatted.model_name(proposal.starter.repo))


class ListDate(QWidget):
    """The date of the list below the recommended models, or that the hub has them. Offers to ask the hub."""

    def __init__(self, services: AppContext) -> None:
        super().__init__()
        self._services = services
        starters = services.models.starters
        if starters.checked:
            words = _tr("Checked with Hugging Face.")
        elif services.checks_models:
            words = _tr("The list is from {date}. Hugging Face did not answer.")
        else:
            words = _tr("The list is from {date}.")
        line = row(label(words.format(date=formatted.day(starters.listed_on)), "small"), spacing=8)
        if not (starters.checked or services.checks_models or services.settings.now.flag("network.offline")):
            check = button(_tr("Check with Hugging Face"), self._check, "link")
            tip = _tr("Asks whether it has these models and how large they are, now and whenever they are offered.")
            check.setToolTip(formatted.plain_tip(tip))
            line.addWidget(check)
        line.addStretch(1)
        self.setLayout(line)
        if not starters.listed_on:
            self.hide()

    def _check(self) -> None:
        self._services.settings.set("network.check_models", True)
        self._services.models.refresh_proposals(check=True)


def _tr(text: str) -> str:
    return QCoreApplication.translate("recommended", text)
