"""The small project that tests of the coding agent work on."""

from tests.code_project import index, project

__all__ = ["index", "project"]
