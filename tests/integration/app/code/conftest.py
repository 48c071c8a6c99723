"""Small-project fixtures for tests of the coding agent."""

from tests.support.code_project import index, project

__all__ = ["index", "project"]
