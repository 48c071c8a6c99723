"""OpenAI-compatible servers on other machines (or ports), as devices of kind `remote`.

Used where the user's rules say so, and never else.
"""
