"""Every error that is raised on purpose belongs to one tree, whose families stand in devices.errors."""

import ast
import functools
from pathlib import Path

ROOT = Path(__file__).parents[2]
FAMILIES = {"TesseraError", "EnvironmentFault", "InputFault", "Cancelled"}


@functools.cache
def classes():
    files = [
        file for package in ("app", "devices", "engine", "quantize") for file in (ROOT / package).rglob("*.py")
    ]
    return [
        (file.relative_to(ROOT).as_posix(), node)
        for file in files
        if "class " in (text := file.read_text("utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef)
    ]


def test_a_family_is_defined_once():
    defined = sorted((node.name, where) for where, node in classes() if node.name in FAMILIES)
    assert defined == sorted((name, "devices/errors.py") for name in FAMILIES)


def test_a_class_with_a_code_belongs_to_a_family():
    """A code reaches programs; `Exception` alone would get neither a status of HTTP nor an exit code."""
    outside = [
        f"{where}: {node.name}"
        for where, node in classes()
        if any(isinstance(base, ast.Name) and base.id == "Exception" for base in node.bases)
        and any(
            isinstance(line, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "code" for t in line.targets)
            for line in node.body
        )
    ]
    assert outside == ["devices/errors.py: TesseraError"]
