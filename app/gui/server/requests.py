"""Recent requests and their programs as table rows. No widgets here."""

import re
import time
from collections.abc import Callable

from PySide6.QtCore import QCoreApplication, QDateTime, QLocale

from app.gui import formatted
from engine.api.requests import Program, RequestRecord

_CLIENT_LEFT = 499  # nginx's status for a client that closed the connection
_OK_BELOW = 400
_VERSION = re.compile(r"/\d\S*$")
_MINUTE_S = 60
SPARE_COLUMNS = (1, 5, 7)  # of `request_columns`: route, cached and first, which go first in a narrow table


def request_columns() -> list[str]:
    """Column titles of `request_row`."""
    return [
        _tr("Program"), _tr("Route"), _tr("Model"), _tr("Time"), _tr("Read"), _tr("Cached"),
        _tr("Written"), _tr("First"), _tr("Tokens/s"), _tr("Duration"),
    ]  # fmt: skip


def request_row(row: RequestRecord, title: Callable[[str], str] = str) -> list[str]:
    """Cells of one request; a dash for unknown values. `title` returns a model's name by id."""
    return [
        _VERSION.sub("", row.program),
        row.route.removeprefix("/v1/"),
        title(row.model) if row.model else formatted.UNKNOWN,
        clock(row.time),
        _whole(row.prompt_tokens),
        _whole(row.cached_tokens),
        _whole(row.completion_tokens),
        _seconds(row.ttft_s),
        formatted.UNKNOWN if row.tok_s is None else formatted.decimal(row.tok_s),
        took(row),
    ]


def took(row: RequestRecord) -> str:
    """Duration in seconds, or why there is none: running, rejected with a status, or client disconnected."""
    if row.running:
        return _tr("Running")
    if row.status in {0, _CLIENT_LEFT}:
        return _tr("Client disconnected")
    return _seconds(row.seconds) if row.status < _OK_BELOW else _tr("Rejected ({status})").format(status=row.status)


def program_columns() -> list[str]:
    """Column titles of `program_row`."""
    return [_tr("Program"), _tr("Address"), _tr("Last seen"), _tr("Running"), _tr("Requests")]


def program_row(row: Program) -> list[str]:
    """Cells of one program."""
    seconds = max(0.0, time.time() - row.last_seen)
    ago = _tr("now") if row.active or seconds < _MINUTE_S else _tr("{n} ago").format(n=formatted.duration(seconds))
    return [
        row.name,
        row.address,
        ago,
        formatted.whole(row.active),
        formatted.whole(row.num_requests),
    ]


def clock(seconds: float) -> str:
    """Format a Unix time as local time of day."""
    moment = QDateTime.fromSecsSinceEpoch(int(seconds))
    return QLocale().toString(moment.time(), "HH:mm:ss")


def _whole(value: int | None) -> str:
    return formatted.UNKNOWN if value is None else formatted.whole(value)


def _seconds(value: float | None) -> str:
    if value is None:
        return formatted.UNKNOWN
    if value < 1:
        return _tr("{n} ms").format(n=formatted.whole(1000 * value))
    return _tr("{n} s").format(n=formatted.decimal(value))


def _tr(text: str) -> str:
    return QCoreApplication.translate("requests", text)
