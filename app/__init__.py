"""Tessera's window and terminal commands. Both are clients of the local server."""

from engine.core.version import __version__ as __version__
