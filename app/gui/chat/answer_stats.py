"""Formats the statistics of a response for display."""

from collections.abc import Sequence

from PySide6.QtCore import QCoreApplication, QEvent, QLocale, Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QLabel, QSizePolicy

from app.answer_facts import AnswerFacts
from app.client import ChatResponse
from app.db.records import Message
from app.gui.formatted import plain_tip
from app.gui.reasons import translated
from engine.api.chat import Timings, Usage

_EXACT_BELOW = 100  # tokens/s; no decimals above this
_SHOWN_PASSAGE = 60


def number(value: float, decimals: int = 0) -> str:
    """Format a number for the current language."""
    return QLocale().toString(float(value), "f", decimals)


def used_tokens(message: Message) -> int:
    """Tokens of context in use after this response; 0 if unknown."""
    usage = message.facts.usage
    return usage.total_tokens if usage is not None else 0


def answer_facts(message: Message, n_ctx: int = 0) -> list[str]:
    """Speed, time to first token and context used, as far as known. Most important first."""
    facts, parts = message.facts, list[str]()
    usage, timings = facts.usage, facts.timings
    if timings is not None:
        # Prefer the time the user waited, including model load and queue, if it was measured.
        speed, first = timings.tok_s, facts.first_s or timings.ttft_s
        if speed:
            parts.append(_tr("{n} tokens/s").format(n=number(speed, 1 if speed < _EXACT_BELOW else 0)))
        if first:
            parts.append(
                _tr("first after {n} s").format(n=number(first, 1))
                if first >= 1
                else _tr("first after {n} ms").format(n=number(first * 1000))
            )
        parts += _energy(timings)
    if usage is not None and usage.completion_tokens:
        parts.append(_tr("{n} tokens").format(n=number(usage.completion_tokens)))
    total = used_tokens(message)
    if total and n_ctx:
        parts.append(_tr("context {n} %").format(n=number(100 * total / n_ctx)))
    if facts.finish_reason == "length" and facts.runaway is None:
        parts.append(_tr("stopped at the length limit"))
    if facts.ran_on:
        parts.append(translated(facts.ran_on_detail, facts.ran_on).rstrip("."))
    if facts.edited:
        parts.append(_tr("edited by you"))
    if message.status == "stopped":
        parts.append(_tr("stopped by you"))
    return parts


def _energy(timings: Timings) -> list[str]:
    """Energy used by the response, if a power sensor reported it."""
    joules = timings.joules or 0
    if joules <= 0:
        return []
    return [_tr("{n} J").format(n=number(joules, 1 if joules < _EXACT_BELOW else 0))]


def runaway_note(message: Message) -> str:
    """Why the loop guard stopped this response, or ""."""
    loop = message.facts.runaway
    if loop is None:
        return ""
    if loop.kind == "noise":
        return _tr("Stopped: the answer became random text. A lower temperature helps.")
    passage = loop.passage
    shown = passage if len(passage) <= _SHOWN_PASSAGE else passage[:_SHOWN_PASSAGE] + "…"
    times = number(loop.times)
    return _tr("Stopped: the answer repeated the same text {n} times (“{passage}”).").format(n=times, passage=shown)


def _tr(text: str) -> str:
    return QCoreApplication.translate("facts", text)


def speed_facts(answer: ChatResponse, count: int) -> AnswerFacts:
    """Usage and speed of a response whose tokens the window counted itself."""
    seconds = answer.last_s - answer.first_s
    speed = round((count - 1) / seconds, 2) if seconds > 0 and count > 1 else 0.0
    return AnswerFacts(usage=Usage(completion_tokens=count), timings=Timings(tok_s=speed))


_BETWEEN, _MORE = " · ", " · …"


class FactsLine(QLabel):
    """A line of facts, most important first. The last ones are omitted if they do not fit."""

    def __init__(self, facts: Sequence[str]) -> None:
        super().__init__()
        self._facts = list(facts)
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setProperty("kind", "small")
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.setAccessibleName(_BETWEEN.join(facts))
        self._fit()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Show as many facts as fit."""
        super().resizeEvent(event)
        self._fit()

    def changeEvent(self, event: QEvent) -> None:
        """Fit again after a font change."""
        super().changeEvent(event)
        if event.type() in {QEvent.Type.FontChange, QEvent.Type.StyleChange}:
            self._fit()

    def _fit(self) -> None:
        whole = _BETWEEN.join(self._facts)
        shown, metrics = whole, self.fontMetrics()
        for count in range(len(self._facts) - 1, 0, -1):
            if metrics.horizontalAdvance(shown) <= self.width():
                break
            shown = _BETWEEN.join(self._facts[:count]) + _MORE
        if shown != self.text():
            self.setText(shown)
        self.setToolTip(plain_tip(whole) if shown != whole else "")
