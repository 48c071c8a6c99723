"""The local runtime: library, fit, dispatch, runners, chat and the server."""
