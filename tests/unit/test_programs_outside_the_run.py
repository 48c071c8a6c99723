"""Benchmarks, opt-in tests and the bundle's recipe import only existing names; the normal run starts none."""

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"app", "devices", "engine", "installers", "quantize"}
PROGRAMS = sorted(p for folder in ("bench", "optin", "real") for p in (ROOT / "tests" / folder).rglob("*.py"))
PROGRAMS += sorted((ROOT / "installers").rglob("*.spec"))


def source_of(module):
    """The file of a module, or None."""
    path = ROOT.joinpath(*module.split("."))
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()), None)


@cache
def names_in(path):
    """Names that a module has at its top level, also within `if` and `try`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(name.asname or name.name).partition(".")[0] for name in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def trees(text):
    """The program, and programs that it contains as text."""
    tree = ast.parse(text)
    yield tree
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\nfrom " in node.value:
            try:
                yield ast.parse(node.value)
            except SyntaxError:
                continue


def missing(text):
    """Imports of product names that do not exist."""
    for tree in trees(text):
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or (node.module or "").partition(".")[0] not in PACKAGES:
                continue
            path = source_of(node.module)
            for name in node.names:
                known = path is not None and ("__getattr__" in names_in(path) or name.name in names_in(path))
                if not known and source_of(f"{node.module}.{name.name}") is None:
                    yield f"{node.module}: {name.name}"


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: str(p.relative_to(ROOT)))
def test_they_import_what_is_there(program):
    assert list(missing(program.read_text("utf-8"))) == []


def test_what_moved_is_found():
    text = 'from engine.core.paths import Paths, nowhere\nCODE = """\nfrom engine.gone import x\n"""\n'
    assert list(missing(text)) == ["engine.core.paths: nowhere", "engine.gone: x"]


def imported(path):
    """Modules that a file imports when it is loaded, by name."""
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (node.module, *(f"{node.module}.{name.name}" for name in node.names))


@cache
def opens_qt(module):
    """Whether importing this module of the window imports Qt."""
    path = source_of(module)
    names = list(imported(path)) if path else []
    return any(n.startswith("PySide6") or (n.startswith("app.gui.") and opens_qt(n)) for n in names)


def test_unit_tests_can_be_collected_without_qt():
    """`--quick` refuses Qt; in a complete run nothing does."""
    files = [f for f in (ROOT / "tests" / "unit").rglob("test_*.py") if "app.gui" in f.read_text("utf-8")]
    assert [(f.name, m) for f in files for m in imported(f) if m.startswith("app.gui") and opens_qt(m)] == []
