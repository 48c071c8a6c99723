"""The small project that tests of the coding agent work on."""

from tests.support.code_project import index, project

__all__ = ["index", "project"]
