"""Shared by the whole engine: request types, errors, state files, paths, sampling defaults."""
