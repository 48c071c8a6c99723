"""The desktop window. The only package that imports Qt."""

import builtins


def load_qt() -> None:
    """Import Qt, and take back its replacement of `import`.

    PySide6's reads the source of every module that is imported later, to look for the name PySide6 in it. Only
    `from __feature__ import …` needs that. It takes a fifth of the window's start, and keeps 6 MB in memory.
    """
    import PySide6.QtCore  # noqa: F401

    builtins.__import__ = getattr(builtins, "__orig_import__", builtins.__import__)
