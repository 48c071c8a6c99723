"""OpenAI-compatible servers on other machines (or ports), as devices of kind `remote`.

Used only if the user's rules say so.
"""
