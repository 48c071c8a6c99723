"""Assemble the context for a prompt within a token budget: mentions first, then search results.

An item that does not fit is shortened to its most relevant part or omitted; both are reported.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Literal

from app.code.context.items import Context, ContextItem, LeftOut
from app.code.edits.parse import contents
from app.code.git import Git
from app.code.index.database import ChunkHit, IndexDatabase, SymbolHit
from app.code.index.project import ProjectIndex
from app.code.index.vectors import VectorIndex
from devices.errors import TesseraError

# Mentions in a prompt: @file, @folder, @symbol and @diff, with or without the kind and a colon.

MentionKind = Literal["file", "folder", "symbol", "diff", "any"]

# A mention starts a word, so that mail addresses and decorators in code do not count.
_MENTION = re.compile(
    r"(?<![\w`@./])@(?:(file|folder|symbol):)?(?:\"([^\"\n]+)\"|([\w./\-+~$]*[\w/\-+~$]))(?:#L?(\d+)(?:-L?(\d+))?)?"
)


_KINDS: dict[str | None, MentionKind] = {None: "any", "file": "file", "folder": "folder", "symbol": "symbol"}


@dataclass(frozen=True)
class Mention:
    """One mention. Kind "any" is resolved by what exists. Lines are 1-based and inclusive."""

    kind: MentionKind
    target: str
    first: int | None = None
    last: int | None = None

    def __str__(self) -> str:
        lines = f"#{self.first}-{self.last}" if self.first else ""
        return f"@{self.target}{lines}" if self.kind in {"any", "diff"} else f"@{self.kind}:{self.target}{lines}"


def mentions_in(question: str) -> list[Mention]:
    """All mentions in order, without duplicates."""
    mentions: dict[Mention, None] = {}
    for match in _MENTION.finditer(question):
        word, quoted, plain, first, last = match.groups()
        target = quoted or plain
        kind: MentionKind = "diff" if word is None and target == "diff" else _KINDS[word]
        line = int(first) if first else None
        mentions[Mention(kind, target, line, int(last) if last else line)] = None
    return list(mentions)


def without_mentions(question: str) -> str:
    """The prompt without its mentions, as text for the search."""
    return _MENTION.sub(" ", question)


# A longer definition is cut to this number of lines; the user can request the rest.
_SYMBOL_LINES = 150
_FOLDER_FILES = 200
_SAME_NAME_FILES = 3
_OUTLINE_SYMBOLS = 400
# Search results below this fraction of the best score are noise.
_SCORE_FRACTION = 0.35
_MAX_FOUND = 12
# Tokens for an item's title and fences.
_WRAPPING_TOKENS = 16


@dataclass
class _Budget:
    limit: int
    count: Callable[[str], int]
    items: list[ContextItem] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    used: int = 0

    def fits(self, text: str) -> bool:
        return self.used + self.count(text) + _WRAPPING_TOKENS <= self.limit

    def add(self, item: ContextItem) -> bool:
        """Add the item if it fits and is not covered by another one."""
        size = self.count(item.rendered())
        if self.used + size > self.limit or any(_covers(other, item) for other in self.items):
            return False
        self.items.append(replace(item, num_tokens=size))
        self.used += size
        return True

    def leave_out(self, what: str, reason: str) -> None:
        self.left_out.append(LeftOut(what=what, reason=reason))


def assemble(
    index: ProjectIndex,
    question: str,
    budget_tokens: int,
    count: Callable[[str], int],
    *,
    attached: Sequence[ContextItem] = (),
    git: Git | None = None,
    search: bool = True,
    vectors: VectorIndex | None = None,
    excluded: frozenset[str] = frozenset(),
) -> Context:
    """Context for a prompt within `budget_tokens`, as counted by `count`.

    `attached` items (an editor selection, pasted terminal output) come first. `excluded` are keys of items that the
    user removed. With `search` False, only mentions are used. `vectors` adds semantic search.
    """
    budget = _Budget(budget_tokens, count)
    words = without_mentions(question)
    near = vectors.search(words) if vectors is not None and search and words.strip() else []
    with index.lock:
        for item in attached:
            if item.key not in excluded and not budget.add(item):
                budget.leave_out(item.title, f"its {count(item.text)} tokens do not fit the budget")
        for mention in mentions_in(question):
            _add_mention(index, mention, budget, git, excluded)
        if search:
            for item in _search_items(index, words, near):
                if item.key not in excluded and not budget.add(item):
                    _leave_out_found(budget, item)
    return Context(items=tuple(budget.items), left_out=tuple(budget.left_out), budget_tokens=budget_tokens)


def _add_mention(
    index: ProjectIndex, mention: Mention, budget: _Budget, git: Git | None, excluded: frozenset[str]
) -> None:
    try:
        candidates = list(_resolve(index, mention, git))
    except TesseraError as error:
        budget.leave_out(str(mention), str(error))
        return
    if not candidates:
        budget.leave_out(str(mention), "nothing in this project has that name")
    for item in candidates:
        if item.key in excluded or budget.add(item) or any(_covers(p, item) for p in budget.items):
            continue
        shorter = _shortened(index, item, budget)
        if shorter is None or not budget.add(shorter):
            budget.leave_out(
                f"{mention} ({item.title})", f"its {budget.count(item.text)} tokens do not fit the budget"
            )


def _resolve(index: ProjectIndex, mention: Mention, git: Git | None) -> Iterator[ContextItem]:
    """Items of a mention; a bare name is a file, else a folder, else a symbol."""
    if mention.kind == "diff":
        yield from _diff_items(git)
        return
    target = mention.target.removeprefix("./").rstrip("/")
    kinds = ("file", "folder", "symbol") if mention.kind == "any" else (mention.kind,)
    for kind in kinds:
        resolved = False
        for item in _RESOLVERS[kind](index, target, mention):
            resolved = True
            yield item
        if resolved:
            return


def _diff_items(git: Git | None) -> Iterator[ContextItem]:
    diff = git.diff() if git is not None else None
    if diff is not None and diff.text:
        yield ContextItem(
            kind="diff", title="Uncommitted changes", text=diff.text, reason="@diff", partial=diff.cut
        )


def _file_items(index: ProjectIndex, target: str, mention: Mention) -> Iterator[ContextItem]:
    if mention.target.endswith("/"):
        return
    paths = index.database.paths_named(target)
    if target in paths or (mention.kind == "file" and not paths):
        # A file with a full path may be missing from the index.
        paths = [target]
    for path in paths[:_SAME_NAME_FILES]:
        yield _file_item(index, path, mention)


def _folder_items(index: ProjectIndex, target: str, mention: Mention) -> Iterator[ContextItem]:
    paths = index.database.paths(target + "/", limit=_FOLDER_FILES + 1)
    if paths:
        yield _folder_item(index, target, paths, mention)


def _symbol_items(index: ProjectIndex, target: str, mention: Mention) -> Iterator[ContextItem]:
    for hit in index.database.symbols_named(target, limit=_SAME_NAME_FILES):
        item = _symbol_item(index, hit, str(mention))
        if item is not None:
            yield item


_RESOLVERS = {"file": _file_items, "folder": _folder_items, "symbol": _symbol_items}


def _file_item(index: ProjectIndex, path: str, mention: Mention) -> ContextItem:
    file = index.workspace.read(path)
    lines = contents(file.text) or [""]
    first = min(mention.first or 1, len(lines))
    last = min(mention.last or len(lines), len(lines))
    text = "\n".join(lines[first - 1 : last])
    whole = mention.first is None
    title = f"File {path}" if whole else f"File {path}, lines {first} to {last}"
    return ContextItem(
        kind="file", title=title, text=text, reason=str(mention), path=file.path, first=first, last=last
    )


def _folder_item(index: ProjectIndex, folder: str, paths: list[str], mention: Mention) -> ContextItem:
    lines: list[str] = []
    num_symbols = 0
    for path in paths[:_FOLDER_FILES]:
        lines.append(path)
        for hit in index.database.symbols_in(path):
            if not hit.scope and num_symbols < _OUTLINE_SYMBOLS:
                lines.append(f"    {hit.line}: {hit.signature}")
                num_symbols += 1
    return ContextItem(
        kind="folder",
        title=f"Folder {folder}: files and their outermost definitions",
        text="\n".join(lines),
        reason=str(mention),
        path=folder,
        partial=len(paths) > _FOLDER_FILES or num_symbols >= _OUTLINE_SYMBOLS,
    )


def _symbol_item(index: ProjectIndex, hit: SymbolHit, reason: str) -> ContextItem | None:
    last = min(hit.end_line, hit.line + _SYMBOL_LINES - 1)
    text = _lines_of(index, hit.path, hit.line, last)
    if text is None:
        return None
    name = f"{hit.scope}.{hit.name}" if hit.scope else hit.name
    return ContextItem(
        kind="symbol",
        title=f"{hit.kind.capitalize()} {name}, {hit.path} lines {hit.line} to {last}",
        text=text,
        reason=reason,
        path=hit.path,
        first=hit.line,
        last=last,
        partial=last < hit.end_line,
    )


def _search_items(index: ProjectIndex, question: str, near: list[ChunkHit]) -> Iterator[ContextItem]:
    for symbol in named_symbols(index.database, question):
        item = _symbol_item(index, symbol, f"the question names {symbol.name}")
        if item is not None:
            yield item
    hits = merged(search_chunks(index.database, question))
    best = hits[0].score if hits else 0.0
    hits = with_meaning([hit for hit in hits if hit.score >= _SCORE_FRACTION * best], near)
    for hit in hits[:_MAX_FOUND]:
        text = _lines_of(index, hit.path, hit.first, hit.last)
        if text is not None:
            yield ContextItem(
                kind="search",
                title=f"File {hit.path}, lines {hit.first} to {hit.last}",
                text=text,
                reason="fits the question",
                path=hit.path,
                first=hit.first,
                last=hit.last,
            )


def _shortened(index: ProjectIndex, item: ContextItem, budget: _Budget) -> ContextItem | None:
    """Shorten a file to its outline, other items to their first lines; None if even that does not fit."""
    if item.kind == "file" and item.path is not None:
        outline = "\n".join(
            f"{'    ' * hit.scope.count('.') + ('    ' if hit.scope else '')}{hit.line}: {hit.signature}"
            for hit in index.database.symbols_in(item.path)
        )
        if outline and budget.fits(outline):
            return replace(
                item,
                kind="outline",
                title=f"Outline of {item.path} (too long to be given whole)",
                text=outline,
                first=None,
                last=None,
                partial=True,
            )
    lines = item.text.split("\n")
    low, high = 0, len(lines)
    while low < high:
        middle = (low + high + 1) // 2
        if budget.fits("\n".join(lines[:middle])):
            low = middle
        else:
            high = middle - 1
    if not low:
        return None
    last = item.first + low - 1 if item.first else None
    title = f"{item.title} (only its first {low} lines fit)"
    return replace(item, title=title, text="\n".join(lines[:low]), last=last, partial=True)


def _lines_of(index: ProjectIndex, path: str, first: int, last: int) -> str | None:
    """Current lines of a file; None if it was deleted meanwhile."""
    try:
        lines = contents(index.workspace.read(path).text)
    except (TesseraError, OSError):
        return None
    return "\n".join(lines[first - 1 : last])


def _covers(other: ContextItem, item: ContextItem) -> bool:
    """Return True if `other` already contains these lines."""
    if other.key == item.key:
        return True
    if item.path is None or other.path != item.path or not (item.first and item.last):
        return False
    return bool(other.first and other.last and other.first <= item.first and item.last <= other.last)


def _leave_out_found(budget: _Budget, item: ContextItem) -> None:
    if not any(_covers(other, item) for other in budget.items):
        budget.leave_out(item.title, "found by search; no room left in the budget")


# Search: from a prompt to the relevant parts of the project.

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]+|[0-9]{2,}|[^\W\d_]{2,}")
_NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_.]*)(\()?")
_STOP_WORDS = (
    "a about all also am an and any are as at be because been but by can could did do does doing done each for "
    "from get gets has have he her here hers him his how i if in into is it its just like make makes me more "
    "most my no not of on one only or other our out over please she should show so some such tell than that "
    "the their them then there these they this those to too under until up use used uses using very want was "
    "we were what when where which while who why will with would write you your explain fix find add change "
    "code file function where's what's project"
)
_STOP = frozenset(_STOP_WORDS.split())
_MAX_TERMS = 10
# A word in more than this fraction of all chunks does not help, and costs the most time to rank.
_COMMON_FRACTION = 0.3
# Chunks that are ranked by file, before the best of them are shown.
_RANKED_CHUNKS = 200
# A file's score is the weighted sum of its chunks' scores; each weight is the previous one times this factor.
_NEXT_CHUNK = 0.5
_FILE_SHARE = 0.5
_WORDS_FIRST = 3
# More chunks of one file would crowd out the other files.
_CHUNKS_PER_FILE = 2
_TEST_WEIGHT = 0.5
_TEXT_WEIGHT = 0.5
_EXAMPLE_WEIGHT = 0.6
_TEST_NAME = re.compile(r"(?:^|[._-])(?:tests?|specs?)(?:[._-]|$)|^conftest\.")
_TEST_FOLDERS = frozenset({"test", "tests", "testing", "__tests__", "spec", "specs", "testdata", "fixtures"})
_EXAMPLE_FOLDERS = frozenset({"docs", "doc", "examples", "example", "benchmarks", "benchmark", "bench", "site"})
_TEXT_KIND_NAMES = "md markdown rst txt adoc json jsonc yaml yml toml ini cfg conf lock xml html css svg csv log"
_TEXT_KINDS = frozenset(_TEXT_KIND_NAMES.split())
# A shorter name before a bracket is often a plain word: "it(", "as(".
_LEAST_CALLED = 3
# Hits with at most this many lines between them are merged.
_GAP_LINES = 4
_MAX_CHUNKS = 24
_MAX_SYMBOLS = 6


def search_chunks(database: IndexDatabase, question: str) -> list[ChunkHit]:
    """The best-matching chunks, best first."""
    terms = search_terms(database, question)
    if not terms:
        return []
    match = " OR ".join('"' + term.replace('"', '""') + '"' for term in terms)
    return by_file(list(database.search(match, _RANKED_CHUNKS)))[:_MAX_CHUNKS]


def by_file(hits: Sequence[ChunkHit]) -> list[ChunkHit]:
    """Rank chunks (best first) by their own score and by their file's, which several good chunks raise."""
    weighed = [replace(hit, score=hit.score * path_weight(hit.path)) for hit in hits]
    of_file: dict[str, list[float]] = {}
    for hit in weighed:
        of_file.setdefault(hit.path, []).append(hit.score)
    files = {
        path: sum(score * _NEXT_CHUNK**rank for rank, score in enumerate(sorted(scores, reverse=True)))
        for path, scores in of_file.items()
    }
    ranked = [replace(hit, score=hit.score + _FILE_SHARE * files[hit.path]) for hit in weighed]
    counts: Counter[str] = Counter()
    best = []
    for hit in sorted(ranked, key=lambda hit: -hit.score):
        counts[hit.path] += 1
        if counts[hit.path] <= _CHUNKS_PER_FILE:
            best.append(hit)
    return best


def with_meaning(hits: Sequence[ChunkHit], near: Sequence[ChunkHit]) -> list[ChunkHit]:
    """Chunks found by keyword search; from the fourth on, each is followed by one found by semantic search.

    The first places are the same without an embedding model, so that a model for prose cannot make them worse.
    """
    shown = {(hit.path, line) for hit in hits for line in range(hit.first, hit.last + 1)}
    new = [hit for hit in by_file(near) if (hit.path, hit.first) not in shown]
    merged = list(hits[:_WORDS_FIRST])
    for by_words, by_meaning in zip_longest(hits[_WORDS_FIRST:], new):
        merged += [hit for hit in (by_meaning, by_words) if hit is not None]
    return merged


def path_weight(path: str) -> float:
    """The weight of a file in search by its path: sources count fully, tests, documentation and settings less."""
    parts = path.lower().split("/")
    name = parts[-1]
    if _TEST_NAME.search(name) or _TEST_FOLDERS.intersection(parts[:-1]):
        return _TEST_WEIGHT
    if name.rpartition(".")[2] in _TEXT_KINDS or "." not in name.strip(".") or name.startswith("."):
        return _TEXT_WEIGHT
    return _EXAMPLE_WEIGHT if _EXAMPLE_FOLDERS.intersection(parts[:-1]) else 1.0


def search_terms(database: IndexDatabase, question: str) -> list[str]:
    """The most specific words of a prompt, rarest first."""
    words: dict[str, None] = {}
    for word in _WORD.findall(question):
        if word.lower() not in _STOP and len(word) > 1:
            words[word] = None
    counts = database.match_counts(list(words)[: 4 * _MAX_TERMS])
    present = sorted((count, word) for word, count in counts.items() if count)
    total = max(database.num_chunks(), 1)
    rare = [word for count, word in present if count / total <= _COMMON_FRACTION]
    return (rare or [word for _, word in present[:2]])[:_MAX_TERMS]


def named_symbols(database: IndexDatabase, question: str) -> list[SymbolHit]:
    """Definitions whose names are identifiers in the prompt, unless too many share the name."""
    hits: list[SymbolHit] = []
    for name in dict.fromkeys(_identifiers(question)):
        symbols = [hit for hit in database.symbols_named(name, limit=8) if hit.kind != "heading"]
        hits += symbols[:2] if len(symbols) <= _MAX_SYMBOLS else []
    return hits[:_MAX_SYMBOLS]


def _identifiers(question: str) -> Iterator[str]:
    """Words that are code: with an inner capital, underscore or dot, or followed by a bracket."""
    for match, called in _NAME.findall(question):
        name = match.rstrip(".")  # a full stop
        inside = name[1:]
        is_call = bool(called) and len(name) >= _LEAST_CALLED and name.islower()
        if is_call or "_" in inside or "." in inside or inside != inside.lower():
            yield name


def merged(hits: Sequence[ChunkHit]) -> list[ChunkHit]:
    """Merge neighbouring hits of the same file. The result is sorted by the best score."""
    by_path: dict[str, list[ChunkHit]] = {}
    for hit in hits:
        by_path.setdefault(hit.path, []).append(hit)
    result: list[ChunkHit] = []
    for path, own in by_path.items():
        own.sort(key=lambda hit: hit.first)
        current = own[0]
        for hit in own[1:]:
            if hit.first <= current.last + _GAP_LINES:
                current = ChunkHit(path, current.first, max(current.last, hit.last), max(current.score, hit.score))
            else:
                result.append(current)
                current = hit
        result.append(current)
    return sorted(result, key=lambda hit: -hit.score)
