"""The Code page: ask about a project, review and apply edits."""
