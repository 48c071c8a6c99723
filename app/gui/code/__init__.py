"""The page for coding: ask about a project, review and apply edits."""
