"""Crash reports: local, redacted files that the user may copy. Nothing is sent."""

import faulthandler
import logging
import os
import platform
import re
import sys
import time
import traceback
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import IO

from PySide6.QtCore import QObject, Signal

from engine.core.version import __version__

_LAST_RECORDS = 200
_MOST_CHARACTERS = 100_000
_SECRET = re.compile(
    r"(?i)(bearer\s+|authorization[\"'=:\s]+basic\s+|hf_|sk-|tsr_|(?:token|key|password|secret)[\"'=:\s]+)"
    r"[A-Za-z0-9_\-.]{8,}"
)
_USER = re.compile(r"://[^/\s@]*@")  # of an address, often with a password


class RecentLog(logging.Handler):
    """Stores the last log records for the report."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
        self.records: deque[str] = deque(maxlen=_LAST_RECORDS)

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(self.format(record))


class CrashReports(QObject):
    """Writes crash reports into a folder. Native faults go to a file that the next start reads."""

    reported = Signal(str)

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self.earlier_fault = ""  # native fault of the previous run
        self.log = RecentLog()
        self._fault_file: IO[str] | None = None

    def install(self) -> None:
        logging.getLogger().addHandler(self.log)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self.earlier_fault = self._take_native_fault()
            # Open until the process exits: the fault handler writes to its descriptor.
            self._fault_file = (self._folder / "native-fault.txt").open("a", encoding="utf-8")
            faulthandler.enable(self._fault_file)
        except OSError:
            faulthandler.enable()
        sys.excepthook = self.on_exception

    def close(self) -> None:
        """Undo `install`."""
        logging.getLogger().removeHandler(self.log)
        sys.excepthook = sys.__excepthook__
        faulthandler.disable()
        if self._fault_file is not None:
            self._fault_file.close()
            self._fault_file = None

    def on_exception(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Write a report and continue: a failing slot must not close the window."""
        text = self.report("".join(traceback.format_exception(kind, error, trace)))
        sys.stderr.write(text)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / f"crash-{time.strftime('%Y%m%dT%H%M%S')}.txt").write_text(text, "utf-8")
        except OSError:
            logging.getLogger(__name__).exception("the crash report could not be written")
        self.reported.emit(text)

    def report(self, what: str = "") -> str:
        """Facts for a bug report, without names, secrets or chat text."""
        lines = [
            f"Tessera {__version__}, Python {platform.python_version()}, {platform.platform()}",
            what,
            "Last log records:",
            *self.log.records,
        ]
        return redact("\n".join(lines)) + "\n"

    def _take_native_fault(self) -> str:
        """The native fault of an earlier run, or "". Renames the file so that each fault is reported once."""
        file = self._folder / "native-fault.txt"
        try:
            with file.open(encoding="utf-8", errors="replace") as stream:
                text = stream.read(_MOST_CHARACTERS)
            if text:
                file.replace(self._folder / f"crash-native-{time.strftime('%Y%m%dT%H%M%S')}.txt")
        except OSError:
            return ""
        return text


def redact(text: str) -> str:
    """The text without secrets and without the user's name in paths."""
    text = _USER.sub("://[redacted]@", _SECRET.sub(lambda match: f"{match.group(1)}[redacted]", text))
    home = os.path.expanduser("~")  # noqa: PTH111 - a string, to search for it in other text
    return text.replace(home, "~") if len(home) > 1 else text
