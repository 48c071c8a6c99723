"""Moves and renames modules by a table, and rewrites every import, dotted name and path that mentions them.

    python3.12 tests/optin/move_modules.py TABLE.tsv

A row is `old path <tab> new path`, without `.py` for a module and with a final `/` for a folder; paths start at the
root of the repository, and the first row that matches a file counts. Needs Python 3.12 or newer, whose syntax trees
know where names inside f-strings are. Afterwards: ruff check --fix, ruff format, lint-imports, mypy.

By hand: `__init__.py` of new packages, files that compute a path from their own (`Path(__file__).parents[1]`), and
the lines printed as LEFT: names that clash, comments inside imports, paths that are joined from parts.
"""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

TOPS = ("app", "devices", "engine", "quantize", "installers", "tests")
# History keeps its paths, and recorded data keep their bytes.
FROZEN = re.compile(
    r"tests/bench/log-archive\.md|CHANGELOG\.md|docs/adr/|installers/lock/|tests/data/|assets/(?!languages)"
)
SUFFIXES = (".py", ".md", ".toml", ".json")


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, check=True)
    return listed.stdout.split("\0")[:-1]


def read_table(path: str, files: list[str]) -> dict[str, str]:
    """Old file: new file."""
    moves: dict[str, str] = {}
    for line in Path(path).read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        old, new = (part.strip() for part in line.split("\t")[:2])
        if old.endswith("/"):
            found = {file: new + file.removeprefix(old) for file in files if file.startswith(old)}
        else:
            found = {f: n for f, n in ((f"{old}.py", f"{new}.py"), (old, new)) if f in files}
        if not found:
            sys.exit(f"{old} is not there")
        moves = found | moves
    return moves


def drop_doubles(moves: dict[str, str], files: list[str]) -> list[str]:
    """Remove, and return, each `__init__.py` whose new path has one already. Other clashes end the program."""
    taken = set(files) - moves.keys()
    dropped = []
    for old, new in sorted(moves.items()):
        if new not in taken:
            taken.add(new)
        elif old.endswith("__init__.py"):
            dropped.append(old)
        else:
            sys.exit(f"{old}: {new} is there already")
    for old in dropped:
        del moves[old]
    return dropped


def dotted(file: str) -> str:
    path = PurePosixPath(file)
    return ".".join(path.parts[:-1] if path.name == "__init__.py" else path.with_suffix("").parts)


def moved_folders(moves: dict[str, str], dropped: list[str], files: list[str]) -> dict[str, str]:
    """Old folder: new folder, if all of its files went to one place."""
    result = {}
    for folder in {str(p) for file in moves for p in PurePosixPath(file).parents if str(p) != "."}:
        places = set()
        for file in files:
            if file.startswith(f"{folder}/") and file not in dropped:
                inner, new = file.removeprefix(folder), moves.get(file, file)
                places.add(new.removesuffix(inner) if new.endswith(inner) else "")
        place = places.pop() if len(places) == 1 else ""
        if place not in {"", folder}:
            result[folder] = place
    return result


class Names:
    """The names of modules and paths afterwards."""

    def __init__(self, moves: dict[str, str], dropped: list[str], files: list[str]) -> None:
        sources = [file for file in files if file.endswith(".py")]
        self.existing = {dotted(file) for file in sources}
        self.existing |= {".".join(file.split("/")[:i]) for file in sources for i in range(1, file.count("/") + 1)}
        self.modules = {dotted(old): dotted(new) for old, new in moves.items() if old.endswith(".py")}
        self.paths = moves | moved_folders(moves, dropped, files)
        self._dotted = re.compile(rf"(?<![\w./-])(?:{'|'.join(TOPS)})(?:\.[A-Za-z_]\w*)+")
        longest_first = "|".join(re.escape(path) for path in sorted(self.paths, key=len, reverse=True))
        self._path = re.compile(rf"(?<![\w/.-])(?:{longest_first})(?![\w-])")

    def module(self, name: str) -> str | None:
        """The new name of a module or of something inside one; None if it stays."""
        parts = name.split(".")
        for i in range(len(parts), 0, -1):
            head = ".".join(parts[:i])
            if head in self.modules:
                return ".".join([self.modules[head], *parts[i:]])
            if head in self.existing:
                return None
        return None

    def text(self, text: str) -> str:
        """Text with the new names and paths: documents, strings, comments."""

        def renamed(match: re.Match[str]) -> str:
            return match[0] if match[0].endswith(SUFFIXES) else self.module(match[0]) or match[0]

        return self._path.sub(lambda match: self.paths[match[0]], self._dotted.sub(renamed, text))


class Source:
    """One Python file while it gets the new names."""

    def __init__(self, file: str, text: str, names: Names) -> None:
        self._file, self._names = file, names
        self._raw = text.encode()
        self._tree = ast.parse(text)
        self._starts = [0]
        for line in text.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line.encode()))
        nodes = list(ast.walk(self._tree))
        self._bound = Counter(
            [n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)]
            + [n.arg for n in nodes if isinstance(n, ast.arg)]
            + [n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
        )
        self._used = {n.id for n in nodes if isinstance(n, ast.Name)} | self._bound.keys()
        self._renamed: dict[str, str] = {}  # local names of modules
        self.left: list[str] = []

    def _span(self, node: ast.stmt | ast.expr | ast.alias) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._starts[node.lineno - 1] + node.col_offset
        return start, self._starts[node.end_lineno - 1] + node.end_col_offset

    def rewritten(self) -> str:
        edits = set()
        for node in ast.walk(self._tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in TOPS:
                edits |= set(self._import_from(node))
            elif isinstance(node, ast.Import):
                edits |= set(self._import(node))
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Name) and node.id in self._renamed:
                edits.add((*self._span(node), self._renamed[node.id]))
        out, at = [], 0
        for start, end, new in sorted(edits):  # what is written new is not read again
            out += [self._names.text(self._raw[at:start].decode()), new]
            at = end
        return "".join([*out, self._names.text(self._raw[at:].decode())])

    def _import(self, node: ast.Import) -> Iterator[tuple[int, int, str]]:
        for alias in node.names:
            if new := self._names.module(alias.name):
                if alias.asname is None:
                    self.left.append(f"{self._file}:{node.lineno}: import {alias.name}")
                yield *self._span(alias), new + (f" as {alias.asname}" if alias.asname else "")

    def _import_from(self, node: ast.ImportFrom) -> Iterator[tuple[int, int, str]]:
        groups: dict[str, list[str]] = {}
        assert node.module is not None
        for alias in node.names:
            module, name, asname = node.module, alias.name, alias.asname
            full = f"{module}.{name}"
            if full not in self._names.existing:  # something inside a module
                module = self._names.module(module) or module
            elif new := self._names.module(full):
                module, _, name = new.rpartition(".")
                asname = asname or self._local_name(alias.name, name)
            groups.setdefault(module, []).append(name + (f" as {asname}" if asname else ""))
        if groups.keys() == {node.module} and groups[node.module] == [ast.unparse(alias) for alias in node.names]:
            return
        start, end = self._span(node)
        if b"#" in self._raw[start:end]:
            self.left.append(f"{self._file}:{node.lineno}: a comment inside an import")
        lines = [f"from {module} import ({', '.join(parts)})" for module, parts in groups.items()]
        yield start, end, ("\n" + " " * node.col_offset).join(lines)

    def _local_name(self, old: str, new: str) -> str | None:
        """None: the file uses the new name, too. The old one, if the new one means something else there."""
        if old == new:
            return None
        if old in self._bound or new in self._used:
            self.left.append(f"{self._file}: {new} as {old}")
            return old
        self._renamed[old] = new
        return None


def joined_paths(file: str, text: str, names: Names) -> Iterator[str]:
    """Paths that are joined from parts, such as "engine" / "version.py"."""
    parts = re.compile(rf'"(?:{"|".join(TOPS)})"(?:\s*/\s*"[\w.]+")+')
    for number, line in enumerate(text.splitlines(), 1):
        for match in parts.finditer(line):
            path = "/".join(re.findall(r'"([\w.]+)"', match[0]))
            if path in names.paths or f"{path}.py" in names.paths:
                yield f"{file}:{number}: {match[0]}"


def main() -> None:
    files = tracked()
    moves = read_table(sys.argv[1], files)
    dropped = drop_doubles(moves, files)
    names = Names(moves, dropped, files)
    changed, left = 0, []
    for file in files:
        path = Path(file)
        if FROZEN.match(file) or path.is_symlink() or not path.is_file():
            continue
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue
        if file.endswith(".py"):
            source = Source(file, text, names)
            new = source.rewritten()
            left += [*source.left, *joined_paths(file, new, names)]
        else:
            new = names.text(text)
        if new != text:
            changed += 1
            path.write_text(new, "utf-8")
    for old, new in moves.items():
        Path(new).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "mv", old, new], check=True)
    if dropped:
        subprocess.run(["git", "rm", "-qf", *dropped], check=True)
    print(f"{len(moves)} files moved, {len(dropped)} dropped, {changed} changed")
    for line in left:
        print("LEFT", line)


if __name__ == "__main__":
    main()
