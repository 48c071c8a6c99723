"""Text as lines that keep their own endings."""

from collections import Counter


def split(text: str) -> list[tuple[str, str]]:
    """(content, ending) of each line; only LF and CRLF end a line, so form feeds and U+2028 stay content."""
    if not text:
        return []
    parts = text.split("\n")
    lines = [(p[:-1], "\r\n") if p.endswith("\r") else (p, "\n") for p in parts[:-1]]
    if parts[-1]:
        lines.append((parts[-1], ""))
    return lines


def contents(text: str) -> list[str]:
    """The lines without their endings."""
    return [content for content, _ in split(text)]


def ending_of(lines: list[tuple[str, str]]) -> str:
    """The ending most lines have; LF where none has one."""
    counted = Counter(ending for _, ending in lines if ending)
    return counted.most_common(1)[0][0] if counted else "\n"


def indent_of(line: str) -> str:
    """Leading tabs and spaces."""
    return line[: len(line) - len(line.lstrip(" \t"))]
