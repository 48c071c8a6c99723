"""The window and the terminal of Tessera: clients of its local server."""

__version__ = "0.1.0"
