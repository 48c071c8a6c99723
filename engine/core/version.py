"""The version of this installation."""

__version__ = "0.3.0"
