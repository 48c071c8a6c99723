"""A server proves that it is the one whose token a client holds, before the client sends it anything.

The port of a server that crashed is free for any program of any user. Whoever listens there does not know the token
and cannot answer a challenge; the client sends neither the token nor a question.
"""

import hashlib
import hmac
import re
from typing import Final

# GET PATH?challenge=… on a new connection; the answer's field `proof`.
PATH: Final = "/health"
CHALLENGE_BYTES: Final = 16
_CHALLENGE: Final = re.compile(r"[0-9a-f]{32}")


def proof(token: str, challenge: str) -> str | None:
    """What the holder of a token answers; None: that is no challenge."""
    if not _CHALLENGE.fullmatch(challenge):
        return None
    return hmac.new(token.encode(), f"tessera serves {challenge}".encode(), hashlib.sha256).hexdigest()
