"""What to ask for at a cursor, and how much of the answer to offer."""

from dataclasses import dataclass

from engine.chat.fim import FimFile, FimGap, shortened

# A suggestion longer than this is no longer read before it is accepted.
MAX_TOKENS_LINE = 48
MAX_TOKENS_BLOCK = 160
# The text after the cursor changes its place in the prompt with every keystroke, so it is evaluated anew each
# time; a thirty-second part of what precedes it keeps 95 % of the prompt cached. The floor is about two lines.
_SUFFIX_SHARE = 32
_SUFFIX_FLOOR_CHARS = 96
_MAX_BLOCK_LINES = 16
_OPENERS = (":", "{", "(", "[", "=>", "->", "do", "then", "else", "=")


@dataclass(frozen=True, kw_only=True)
class CompletionQuery:
    """A completion to ask for: the gap, stop strings, and the limit in tokens."""

    gap: FimGap
    stop: tuple[str, ...]
    max_tokens: int
    multiline: bool


def request_at(
    path: str,
    text: str,
    cursor: int,
    *,
    extra: tuple[FimFile, ...] = (),
    repository: str | None = None,
    window_chars: int = 12_000,
) -> CompletionQuery:
    """What to ask for when the cursor is at character `cursor` of `text`."""
    prefix, suffix = text[:cursor], text[cursor:]
    multiline = wants_block(prefix, suffix)
    gap = FimGap(prefix=prefix, suffix=suffix, path=path, repository=repository, extra=extra)
    num_extra = sum(len(file.text) + len(file.path) for file in extra)
    keep_extra = min(num_extra, window_chars // 3)
    keep_prefix = min(len(prefix), window_chars - keep_extra)
    keep_suffix = max((keep_prefix + keep_extra) // _SUFFIX_SHARE, _SUFFIX_FLOOR_CHARS)
    return CompletionQuery(
        gap=shortened(gap, keep_prefix=keep_prefix, keep_suffix=keep_suffix, keep_extra=keep_extra),
        stop=("\n\n\n",) if multiline else ("\n",),
        max_tokens=MAX_TOKENS_BLOCK if multiline else MAX_TOKENS_LINE,
        multiline=multiline,
    )


def wants_block(prefix: str, suffix: str) -> bool:
    """Several lines only where a block may begin: at the end of a line that is blank or opens one."""
    rest = suffix.split("\n", 1)[0]
    if rest.strip(" \t)]}'\";,"):
        return False
    before = prefix.rsplit("\n", 1)
    line = before[-1]
    if line.strip():
        return line.rstrip().endswith(_OPENERS) and line != line.rstrip()
    previous = before[0].rstrip() if len(before) > 1 else ""
    return bool(previous)


def offered(text: str, request: CompletionQuery) -> str:
    """The part of a completion worth showing; empty when there is none.

    A block ends where it leaves its indentation, where it starts to repeat the text after the cursor, or when
    a line comes for the third time. A single line loses what the rest of its line already says.
    """
    after = request.gap.suffix
    if not request.multiline:
        line = text.split("\n", 1)[0]
        rest = after.split("\n", 1)[0]
        return _without_tail(line, rest).rstrip() if line.strip() else ""
    next_line = next((line.strip() for line in after.split("\n") if line.strip()), None)
    current = request.gap.prefix.rsplit("\n", 1)[-1]
    indent = len(current) - len(current.lstrip()) if current.strip() else len(current)
    kept: list[str] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(text.split("\n")[:_MAX_BLOCK_LINES]):
        bare = line.strip()
        seen[bare] = seen.get(bare, 0) + 1
        repeats = bare and (seen[bare] > 2 or (number and bare == next_line))  # noqa: PLR2004  # "third time"
        leaves = number and bare and len(line) - len(line.lstrip()) < indent
        if repeats or leaves:
            break
        kept.append(line)
    return "\n".join(kept).rstrip()


def _without_tail(line: str, rest: str) -> str:
    """Drop the longest end of `line` that the text after the cursor begins with."""
    rest = rest.strip()
    for size in range(min(len(line), len(rest)), 0, -1):
        if line.rstrip().endswith(rest[:size]) and (size == len(rest) or not rest[size].isalnum()):
            return line.rstrip()[: len(line.rstrip()) - size]
    return line
