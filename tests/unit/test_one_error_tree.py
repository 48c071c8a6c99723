"""Every deliberately raised error belongs to one tree, whose families are in devices.errors."""

import ast

from tests.support.sources import ROOT, parsed

FAMILIES = {"TesseraError", "EnvironmentFault", "InputFault", "Cancelled"}


def classes(pattern):
    return [
        (file.relative_to(ROOT).as_posix(), node)
        for file, tree in parsed(pattern)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]


def test_a_family_is_defined_once():
    found = classes(rf"class ({'|'.join(FAMILIES)})\b")
    defined = sorted((node.name, where) for where, node in found if node.name in FAMILIES)
    assert defined == sorted((name, "devices/errors.py") for name in FAMILIES)


def test_a_class_with_a_code_belongs_to_a_family():
    """Programs read the code; a bare `Exception` would get neither an HTTP status nor an exit code."""
    outside = [
        f"{where}: {node.name}"
        for where, node in classes(r"^ *class \w+\([^)]*\bException\b")
        if any(isinstance(base, ast.Name) and base.id == "Exception" for base in node.bases)
        and any(
            isinstance(line, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "code" for t in line.targets)
            for line in node.body
        )
    ]
    assert outside == ["devices/errors.py: TesseraError"]
