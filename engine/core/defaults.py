"""What is in force where nobody says otherwise."""

from typing import Final

# Where the server listens.
DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 7373
# Tokens a model gets at least, if it was trained for so many: enough for a long chat, small next to the weights.
DEFAULT_CONTEXT: Final = 8192
# Tokens it gets at most where nobody asks for more: coding agents need about so many.
LARGEST_DEFAULT_CONTEXT: Final = 65_536
