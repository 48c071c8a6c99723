"""How JSON that a grammar enforces is laid out."""

from typing import Final

# Weak models write white space for ever if they may. One blank or one line break with indentation is all that
# formatted JSON needs.
WHITESPACE: Final = r"(\x20|\r?\n[\x20\t]{0,48})?"
