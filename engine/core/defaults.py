"""Defaults of the server address and the context length."""

from typing import Final

# The server listens on this address.
DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 7373
# Minimum default context in tokens, if the model was trained for it: enough for a long chat, small next to the
# weights.
DEFAULT_CONTEXT: Final = 8192
# Maximum default context in tokens: coding agents need about this many.
LARGEST_DEFAULT_CONTEXT: Final = 65_536
