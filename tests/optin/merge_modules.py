"""Merges modules into others by a table, and rewrites every import, dotted name and path that mentions them.

    python3.12 tests/optin/merge_modules.py TABLE.tsv
    python3.12 tests/optin/merge_modules.py --list FOLDER    modules with one importer, which is beside them

A row is `source <tab> target [<tab> renames]`: paths without `.py`, and names of the source that get another one,
as `old=new,old=new`. What the source defines comes behind the target's own code, or in front of it where the target
needs it while it is imported. Rows that cannot be carried out are printed as NOT, with the reason.

Afterwards: ruff check --fix, ruff format, lint-imports, mypy. By hand: layer lists in pyproject.toml, lines printed
as LEFT, and the order of the merged file. Needs Python 3.12 or newer, see move_modules.py.
"""

import ast
import re
import subprocess
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from move_modules import FROZEN, Names, Source, dotted, joined_paths, tracked

PRODUCT = ("app", "devices", "engine", "quantize", "installers", "start.py")
LIMIT = 600
WIDTH = 114
# Modules that may be expensive to import: a deferred import of one of these stays deferred.
LIGHT = set(sys.stdlib_module_names) | {"msgspec", "click"}


class CannotMerge(Exception):
    """The reason why a row stays."""


def bound_at(body: list[ast.stmt]) -> set[str]:
    """Names that these statements bind in their own scope, without those of imports."""
    found: set[str] = set()
    for node in walk_scope(body):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or (
            isinstance(node, ast.ExceptHandler) and node.name
        ):
            found.add(node.name)
        elif isinstance(node, ast.TypeAlias):
            found.add(node.name.id)
    return found


def walk_scope(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Nodes of one scope: functions and classes inside are yielded, but not entered."""
    todo: list[ast.AST] = list(body)
    while todo:
        node = todo.pop()
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            continue
        todo += ast.iter_child_nodes(node)


def is_type_checking(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def imported(nodes: list[ast.stmt]) -> dict[str, str]:
    """Local name: where it is from."""
    found = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            found |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
        elif isinstance(node, ast.Import):
            found |= {
                a.asname or a.name.split(".")[0]: a.name if a.asname else a.name.split(".")[0] for a in node.names
            }
    return found


class Module:
    """A source in its parts: docstring, imports, imports for types, code."""

    def __init__(self, text: str) -> None:
        self.text, self.tree = text, ast.parse(text)
        self.lines = text.splitlines(keepends=True)
        body = self.tree.body
        self.docstring = ast.get_docstring(self.tree, clean=True) or ""
        at = 1 if self.docstring else 0
        self.head_start = body[0].end_lineno or 0 if at else 0
        self.imports: list[ast.stmt] = []
        self.typing: list[ast.If] = []
        while at < len(body):
            node = body[at]
            if isinstance(node, ast.Import | ast.ImportFrom):
                self.imports.append(node)
            elif is_type_checking(node) and isinstance(node, ast.If):
                self.typing.append(node)
            else:
                break
            at += 1
        self.code = body[at:]
        self.head_end = (body[at - 1].end_lineno or 0) if at else 0
        self.defined = bound_at(self.code)
        self.inner_imports = imported(
            [n for n in walk_scope(self.code) if isinstance(n, ast.Import | ast.ImportFrom)]
        )

    def source_of(self, node: ast.stmt) -> str:
        return "".join(self.lines[node.lineno - 1 : node.end_lineno]).rstrip("\n")

    @property
    def type_imports(self) -> list[ast.stmt]:
        return [inner for node in self.typing for inner in node.body]

    def head_comments(self) -> list[str]:
        return [line for line in self.lines[self.head_start : self.head_end] if line.lstrip().startswith("#")]

    def body(self, without: set[str]) -> str:
        """The code; `without`: simple statements that are in the target already."""
        drop: set[int] = set()
        for node in self.code:
            if isinstance(node, ast.Assign | ast.AnnAssign) and ast.unparse(node) in without:
                drop |= set(range(node.lineno, (node.end_lineno or 0) + 1))
        kept = [line for i, line in enumerate(self.lines[self.head_end :], self.head_end + 1) if i not in drop]
        return "".join(kept).strip("\n")


def spans_to_text(text: str, edits: list[tuple[int, int, str]]) -> str:
    raw = text.encode()
    out, at = [], 0
    for start, end, new in sorted(set(edits)):
        out += [raw[at:start].decode(), new]
        at = end
    return "".join([*out, raw[at:].decode()])


class Positions:
    def __init__(self, text: str) -> None:
        self._starts = [0]
        for line in text.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line.encode()))

    def span(self, node: ast.AST) -> tuple[int, int]:
        start = self._starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        return start, self._starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]

    def whole_lines(self, node: ast.stmt) -> tuple[int, int]:
        return self._starts[node.lineno - 1], self._starts[node.end_lineno or 0]


def scopes(tree: ast.Module) -> Iterator[tuple[ast.Name, list[set[str]]]]:
    """Every name that is read, with what the functions around it bind."""

    def visit(node: ast.AST, around: list[set[str]]) -> Iterator[tuple[ast.Name, list[set[str]]]]:
        if isinstance(node, ast.Name):
            yield node, around
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            arguments = node.args
            named = {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
            named |= {a.arg for a in (arguments.vararg, arguments.kwarg) if a}
            if not isinstance(node, ast.Lambda):
                told = {n for x in ast.walk(node) if isinstance(x, ast.Global) for n in x.names}
                inner = [x for x in walk_scope(node.body) if isinstance(x, ast.Import | ast.ImportFrom)]
                named |= (bound_at(node.body) | imported(inner).keys()) - told
                for part in (*node.decorator_list, node.returns, arguments):
                    if part is not None:
                        yield from visit(part, around)
                for part in node.body:
                    yield from visit(part, [*around, named])
                return
            yield from visit(node.body, [*around, named])
            return
        if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            around = [
                *around,
                {n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)},
            ]
        for child in ast.iter_child_nodes(node):
            yield from visit(child, around)

    yield from visit(tree, [])


def renamed_globals(text: str, renames: dict[str, str]) -> str:
    """The source with other names for some of its own globals."""
    if not renames:
        return text
    tree, positions = ast.parse(text), Positions(text)
    edits = []
    for name, around in scopes(tree):
        if name.id in renames and not any(name.id in bound for bound in around):
            if any(renames[name.id] in bound for bound in around):
                raise CannotMerge(f"{renames[name.id]} is a local name, too")
            edits.append((*positions.span(name), renames[name.id]))
    text = spans_to_text(text, edits)
    for old, new in renames.items():  # definitions and `global`
        text = re.sub(rf"^((?:async )?def|class) {old}\b", rf"\1 {new}", text, flags=re.MULTILINE)
        text = re.sub(rf"^(\s+global .*)\b{old}\b", rf"\1{new}", text, flags=re.MULTILINE)
        text = re.sub(rf"`{old}\b", f"`{new}", text)
    return text


def without_module(text: str, module: str, defined: set[str]) -> str:  # noqa: C901, PLR0912
    """The text of one side of a merge, which reads the other side's names as its own."""
    package, _, short = module.rpartition(".")
    tree, positions = ast.parse(text), Positions(text)
    edits: list[tuple[int, int, str]] = []
    aliases: set[str] = set()
    others: dict[str, str] = {}  # local name: name in the other module
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and any(a.name == module for a in node.names):
            raise CannotMerge(f"import {module}")
        if not isinstance(node, ast.ImportFrom):
            continue
        if node.module == module:
            others |= {a.asname: a.name for a in node.names if a.asname and a.asname != a.name}
            edits.append((*positions.whole_lines(node), ""))
        elif node.module == package and any(a.name == short for a in node.names):
            aliases |= {a.asname or a.name for a in node.names if a.name == short}
            rest = [ast.unparse(a) for a in node.names if a.name != short]
            indent = " " * node.col_offset
            edits.append(
                (
                    *positions.whole_lines(node),
                    f"{indent}from {package} import ({', '.join(rest)})\n" if rest else "",
                )
            )
    uses: set[int] = set()
    local: set[str] = set()
    around_of = {id(name): around for name, around in scopes(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases:
            around = around_of[id(node.value)]
            bound = [b for b in around if node.value.id in b]
            is_import = any(
                isinstance(x, ast.ImportFrom) and x.module == package and x.col_offset > 0 for x in ast.walk(tree)
            )
            if bound and not is_import:
                continue
            uses.add(id(node.value))
            if any(node.attr in b for b in around):
                local.add(node.attr)
            edits.append((*positions.span(node), node.attr))
    if local:
        raise CannotMerge(f"local names: {', '.join(sorted(local))}")
    for name, around in scopes(tree):
        if name.id in aliases and id(name) not in uses and not any(name.id in b for b in around):
            raise CannotMerge(f"line {name.lineno}: {name.id} is used as a whole")
        if name.id in others and not (any(others[name.id] in b for b in around)):
            edits.append((*positions.span(name), others[name.id]))
    if clash := {new for new in others.values() if new not in defined}:
        raise CannotMerge(f"imported names: {clash}")
    return spans_to_text(text, edits)


def needs_now(module: Module, names: set[str]) -> bool:
    """The module reads one of the names while it is imported."""

    def visit(node: ast.AST) -> bool:
        if isinstance(node, ast.Name):
            return node.id in names
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            parts: list[ast.AST | None] = [*node.decorator_list, node.args, node.returns]
            return any(visit(part) for part in parts if part is not None)
        if isinstance(node, ast.Lambda):
            return False
        return any(visit(child) for child in ast.iter_child_nodes(node))

    return any(visit(node) for node in module.code)


def calls_now(module: Module) -> set[str]:
    """Names that the module's own functions read where they are called while it is imported."""
    inner: dict[str, set[str]] = {}
    for node in module.code:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner[node.name] = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    todo = [
        n.func.id
        for node in module.code
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_program(node)
        for n in walk_scope([node])
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
    ]
    found: set[str] = set()
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += inner.get(name, ())
    return found


def is_program(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def section(module: Module) -> str:
    """The docstring of a module as a comment above its part of the merged one."""
    public = [n for n in module.code if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
    public = [n for n in public if not n.name.startswith("_")]
    one_line = "\n" not in module.docstring
    if not module.docstring or (one_line and len(public) == 1 and ast.get_docstring(public[0])):
        return ""
    lines = module.docstring.splitlines()
    if any(len(line) > WIDTH for line in lines):
        paragraphs = module.docstring.split("\n\n")
        lines = "\n\n".join(textwrap.fill(p, WIDTH, break_on_hyphens=False) for p in paragraphs).splitlines()
    return "\n".join(f"# {line}".rstrip() for line in lines) + "\n\n"


def merged(  # noqa: C901, PLR0912
    source_text: str, target_text: str, source_module: str, target_module: str
) -> tuple[str, list[str]]:
    """The merged file, and what needs a review."""
    before = Module(source_text)
    if re.search(r"^if __name__ ==", source_text, flags=re.MULTILINE):
        raise CannotMerge("it is run as a program")
    if "__all__" in before.defined:
        raise CannotMerge("it has __all__")
    target_names = Module(target_text).defined
    source = Module(without_module(source_text, target_module, target_names))
    target = Module(without_module(target_text, source_module, before.defined))
    simple = {ast.unparse(n) for n in target.code if isinstance(n, ast.Assign | ast.AnnAssign)}
    double = {ast.unparse(n) for n in source.code if isinstance(n, ast.Assign | ast.AnnAssign)} & simple
    same = {name for n in ast.parse("\n".join(double)).body for name in bound_at([n])}
    clash = (source.defined - same) & target.defined
    s_imports = imported([*source.imports, *source.type_imports])
    t_imports = imported([*target.imports, *target.type_imports])
    clash |= source.defined & t_imports.keys()
    clash |= target.defined & s_imports.keys()
    clash |= {name for name in s_imports.keys() & t_imports.keys() if s_imports[name] != t_imports[name]}
    if clash:
        raise CannotMerge(f"both have: {', '.join(sorted(clash))}")
    left = [f"comment between imports: {line.strip()}" for line in source.head_comments()]
    runtime = imported([*source.imports, *target.imports])
    types: dict[str, None] = {}
    for module in (target, source):
        for node in module.type_imports:
            if isinstance(node, ast.ImportFrom):
                for a in node.names:
                    if (a.asname or a.name) not in runtime:
                        types[f"    from {node.module} import {ast.unparse(a)}"] = None
            else:
                types[f"    {ast.unparse(node)}"] = None
    head = "".join(target.lines[: target.head_start]).rstrip("\n")
    for line in source_text.splitlines():
        if line.startswith("# ruff: noqa") and line not in target_text:
            head = f"{line}\n{head}"
    rows = [target.source_of(n) for n in target.imports] + [source.source_of(n) for n in source.imports]
    left += [f"comment between imports: {line.strip()}" for line in target.head_comments()]
    imports = "\n".join(dict.fromkeys(rows))
    if types:
        imports += "\n\nif TYPE_CHECKING:\n" + "\n".join(types)
    first_source = (
        needs_now(target, before.defined) or bool(same & before.defined) or bool(calls_now(target) & before.defined)
    )
    backwards = {
        a.name
        for n in ast.walk(before.tree)
        if isinstance(n, ast.ImportFrom)
        for a in n.names
        if n.module == target_module
    }
    if first_source and needs_now(source, backwards):
        raise CannotMerge("each needs the other while it is imported")
    own = target.body(double if first_source else set())
    new = section(source) + source.body(set() if first_source else double)
    own, program, rest = own.partition('\n\nif __name__ == "__main__":\n')
    parts = [new, own] if first_source else [own, new]
    parts.append((program + rest).strip("\n"))
    return "\n\n".join(filter(None, [head, imports, "\n\n\n".join(p for p in parts if p)])) + "\n", left


@dataclass
class Tree:
    """All files in memory; written at the end."""

    texts: dict[str, str] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)

    def read(self) -> None:
        for file in tracked():
            path = Path(file)
            if FROZEN.match(file) or path.is_symlink() or not path.is_file():
                continue
            try:
                self.texts[file] = path.read_text("utf-8")
            except UnicodeDecodeError:
                continue

    def put(self, file: str, text: str) -> None:
        if self.texts[file] != text:
            self.texts[file] = text
            self.changed.add(file)

    def write(self) -> None:
        for file in self.changed - self.removed:
            Path(file).write_text(self.texts[file], "utf-8")
        if self.removed:
            subprocess.run(["git", "rm", "-qf", *sorted(self.removed)], check=True)


def merge(tree: Tree, source: str, target: str, renames: dict[str, str]) -> list[str]:
    if source not in tree.texts or target not in tree.texts:
        raise CannotMerge("there is no such file")
    module, into = dotted(source), dotted(target)
    package, _, short = module.rpartition(".")
    text = renamed_globals(tree.texts[source], renames)
    target_text = renamed_users(tree.texts[target], module, renames)
    new, left = merged(text, target_text, module, into)
    if (length := new.count("\n")) > LIMIT + 12:  # the formatter removes some
        raise CannotMerge(f"{length} lines")
    names = Names({source: target}, [], [*tree.texts])
    bare = re.compile(rf"(?<![\w/.]){re.escape(short)}\.py\b")
    edits = {target: new}
    for file, now in tree.texts.items():
        old = now
        if file in (source, target) or short not in old:
            continue
        if file.endswith(".py"):
            if module not in old and f"{package} import" not in old and source not in old:
                continue
            old = renamed_users(old, module, renames)
            one = User(file, old, names)
            edits[file] = one.rewritten()
            left += one.left
            left += joined_paths(file, edits[file], names)
        else:
            edits[file] = names.text(old)
            left += [f"{file}: {short}.py" for _ in bare.finditer(edits[file])]
    for file, text in edits.items():
        tree.put(file, text)
    del tree.texts[source]
    tree.removed.add(source)
    return left


class User(Source):
    """A file that reads a merged module: where it knows the target already, it calls it by one name."""

    def _local_name(self, old: str, new: str) -> str | None:
        at_top = [n for n in self._tree.body if isinstance(n, ast.ImportFrom)]
        if old != new and new not in self._bound and any(a.name == new for n in at_top for a in n.names):
            self._renamed[old] = new
            return None
        return super()._local_name(old, new)


def renamed_users(text: str, module: str, renames: dict[str, str]) -> str:  # noqa: C901, PLR0912
    """New names of a module's globals where others use them."""
    if not renames or module.rpartition(".")[2] not in text:
        return text
    package, _, short = module.rpartition(".")
    tree, positions = ast.parse(text), Positions(text)
    edits: list[tuple[int, int, str]] = []
    aliases, plain = {short}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == module:
            for a in node.names:
                if a.name in renames:
                    plain |= set() if a.asname else {a.name}
                    edits.append((*positions.span(a), renames[a.name] + (f" as {a.asname}" if a.asname else "")))
        elif isinstance(node, ast.ImportFrom) and node.module == package:
            aliases |= {a.asname for a in node.names if a.name == short and a.asname}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases:
            if node.attr in renames:
                end = positions.span(node)[1]
                edits.append((end - len(node.attr), end, renames[node.attr]))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            for old, new in renames.items():
                if node.value == f"{module}.{old}":
                    edits.append((*positions.span(node), f'"{module}.{new}"'))
    for name, around in scopes(tree):
        if name.id in plain and not any(name.id in b for b in around):
            edits.append((*positions.span(name), renames[name.id]))
    return spans_to_text(text, edits)


# Which modules could be merged.


@dataclass
class Graph:
    """Who imports whom in the product, and how."""

    eager: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    users: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    external: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def closure(self, file: str) -> tuple[set[str], set[str]]:
        """The product's files and packages that an import of this file loads."""
        seen, todo = {file}, [file]
        while todo:
            for other in self.eager[todo.pop()] - seen:
                seen.add(other)
                todo.append(other)
        return seen, set().union(*(self.external[f] for f in seen)) - LIGHT


def graph_of(texts: dict[str, str]) -> Graph:
    files = {dotted(f): f for f in texts if f.endswith(".py")}
    graph = Graph()
    for file in files.values():
        tree = ast.parse(texts[file])
        top = {id(n) for n in walk_scope(tree.body)}
        typing = {id(n) for x in tree.body if is_type_checking(x) for n in ast.walk(x)}
        for node in ast.walk(tree):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            base = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
            for name in base:
                tails = [a.name for a in node.names] if isinstance(node, ast.ImportFrom) else [""]
                for tail in tails:
                    found = files.get(f"{name}.{tail}") or files.get(name)
                    is_eager = id(node) in top and id(node) not in typing
                    if found and found != file:
                        graph.users[found].add(file)
                        if is_eager:
                            graph.eager[file].add(found)
                    elif is_eager and not found:
                        graph.external[file].add(name.split(".")[0])
    return graph


def candidates(tree: Tree, folder: str) -> Iterator[tuple[str, str, str]]:  # noqa: C901
    """Source, target, and reasons against a merge."""
    product = {f: t for f, t in tree.texts.items() if f.startswith(PRODUCT) and f.endswith(".py")}
    tests = {f: t for f, t in tree.texts.items() if f.startswith("tests/") and f.endswith(".py")}
    graph = graph_of(product)
    test_users = graph_of(product | tests).users
    size = {f: t.count("\n") for f, t in product.items()}
    into: dict[str, str] = {}

    def root(file: str) -> str:
        while file in into:
            file = into[file]
        return file

    for file in sorted((f for f in product if f.startswith(folder)), key=lambda f: size[f]):
        if file.endswith(("__init__.py", "__main__.py")):
            continue
        users = {root(user) for user in graph.users[file]} - {root(file)}
        if len(users) != 1:
            continue
        target = users.pop()
        if Path(target).parent != Path(file).parent or target.endswith("__init__.py"):
            continue
        module, against = dotted(file), []
        if size[root(file)] + size[target] > LIMIT:
            against.append(f"{size[root(file)]} + {size[target]} lines")
        if any(re.search(rf"[\"']{re.escape(module)}[\"' ]", text) for text in product.values()):
            against.append("named in a string")
        if 'if __name__ == "__main__"' in product[file]:
            against.append("program")
        files_s, packages_s = graph.closure(file)
        files_t, packages_t = graph.closure(target)
        if file not in files_t and packages_s - packages_t:
            against.append(f"deferred: {' '.join(sorted(packages_s - packages_t))}")
        elif file not in files_t and len(files_s - files_t) > 4:
            against.append(f"deferred: {len(files_s - files_t)} files")
        tested = [f for f in test_users[file] if f.startswith("tests/unit")]
        if tested and (new := (packages_t - packages_s) & {"PySide6", "llama_cpp", "onnxruntime"}):
            against.append(f"tested without {' '.join(sorted(new))}")
        if not against:
            size[target] += size[root(file)]
            into[root(file)] = target
        yield file, target, "; ".join(against)


def main() -> None:
    tree = Tree()
    tree.read()
    if sys.argv[1] == "--list":
        for source, target, against in candidates(tree, sys.argv[2]):
            row = f"{source.removesuffix('.py')}\t{target.removesuffix('.py')}"
            lines = f"{tree.texts[source].count(chr(10))} into {tree.texts[target].count(chr(10))}"
            print(f"# {row}\t{against} ({lines})" if against else row + f"\t\t# {lines}")
        return
    left: list[str] = []
    done = 0
    for line in Path(sys.argv[1]).read_text().splitlines():
        if not (row := line.partition("#")[0].rstrip()):
            continue
        source, target, *more = (part.strip() for part in row.split("\t"))
        renames = dict(pair.split("=") for pair in more[0].split(",")) if more and more[0] else {}
        try:
            left += merge(tree, f"{source}.py", f"{target}.py", renames)
            done += 1
        except CannotMerge as error:
            print(f"NOT {source} -> {target}: {error}")
    tree.write()
    print(f"{done} merged, {len(tree.changed - tree.removed)} changed")
    for line in dict.fromkeys(left):
        print("LEFT", line)


if __name__ == "__main__":
    main()
