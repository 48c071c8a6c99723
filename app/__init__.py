"""The window and the terminal of Tessera: clients of its local server."""

from engine.core.version import __version__ as __version__
