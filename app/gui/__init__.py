"""The desktop window. The only package that imports Qt."""

import builtins


def load_qt() -> None:
    """Import Qt, and restore the built-in `import`.

    PySide6 replaces it with a function that reads the source of every module imported later, to look for the name
    PySide6. Only `from __feature__ import …` needs that. It takes a fifth of the window's start and 6 MB of memory.
    """
    import PySide6.QtCore  # noqa: F401

    builtins.__import__ = getattr(builtins, "__orig_import__", builtins.__import__)
