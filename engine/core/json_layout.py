"""The whitespace that grammars for JSON allow."""

from typing import Final

# Weak models write whitespace forever if the grammar allows it. Formatted JSON needs only one blank or one line
# break with indentation.
WHITESPACE: Final = r"(\x20|\r?\n[\x20\t]{0,48})?"
