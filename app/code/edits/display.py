"""Display of a streamed response: its search/replace blocks are converted to diffs."""

import re

_SEARCH = re.compile(r"^<{5,9}\s*(?:SEARCH|ORIGINAL)\b")
_DIVIDER = re.compile(r"^={5,9}\s*$")
_REPLACE = re.compile(r"^>{5,9}\s*(?:REPLACE|UPDATED)\b")
_FENCE = re.compile(r"^\s*(`{3,}|~{3,})")


class EditDisplay:
    """Converts the chunks of a response, in order, to markdown to append.

    Processes whole lines: the last, incomplete line is buffered until it ends or `finish` is called, unless it
    cannot start a mark or a fence.
    """

    def __init__(self) -> None:
        self._pending = ""
        self._at_line_start = True
        self._fence: str | None = None
        self._waiting_fence: str | None = None
        self._part = ""
        self._drop_close = False

    def push(self, text: str) -> str:
        """Markdown that can be shown now."""
        *lines, self._pending = (self._pending + text).split("\n")
        shown = "".join(self._line(line, "\n") for line in lines)
        if self._pending and not self._part and self._waiting_fence is None and not self._special(self._pending):
            shown += self._pending
            self._pending, self._at_line_start = "", False
        return shown

    def finish(self) -> str:
        """Buffered text, and the end of a fence left open."""
        shown = self._line(self._pending, "") if self._pending else ""
        self._pending = ""
        if self._waiting_fence is not None:
            shown, self._waiting_fence = self._waiting_fence + shown, None
        if self._part:
            shown += "\n```\n"
            self._part = ""
        return shown

    def _special(self, line: str) -> bool:
        """Return True if an incomplete line may become a mark or a fence."""
        return self._at_line_start and line.lstrip()[:1] in {"<", "`", "~"}

    def _line(self, line: str, end: str) -> str:
        begins, self._at_line_start = self._at_line_start, True
        if not begins:
            return line + end
        if self._part:
            return self._inside(line, end)
        waiting, self._waiting_fence = self._waiting_fence, None
        if _SEARCH.match(line):
            return self._begin(right_after_fence=waiting is not None)
        return self._outside(line, end, waiting)

    def _begin(self, *, right_after_fence: bool) -> str:
        self._part = "-"
        self._drop_close = right_after_fence
        if right_after_fence:
            self._fence = None
        return "```diff\n" if self._fence is None else "```\n```diff\n"

    def _outside(self, line: str, end: str, waiting: str | None) -> str:
        fence = _FENCE.match(line)
        if fence is None:
            return (waiting or "") + line + end
        if self._drop_close and self._fence is None and line.strip() == fence.group(1):
            self._drop_close = False
            return waiting or ""
        if self._fence is None:
            # Buffered until the next line shows whether an edit block starts there.
            self._fence = line
            self._waiting_fence = line + end
            return waiting or ""
        self._fence = None
        return (waiting or "") + line + end

    def _inside(self, line: str, end: str) -> str:
        if _REPLACE.match(line):
            self._part = ""
            return "```\n" + (self._fence + "\n" if self._fence is not None else "")
        if _DIVIDER.match(line):
            self._part = "+"
            return ""
        return f"{self._part}{line}{end}"
