"""Lets a server prove that it knows the client's token, before the client sends anything.

After a crash, any program of any user may listen on the server's port. Such a program does not know the token and
cannot prove it, so the client sends it neither the token nor a request.
"""

import hashlib
import hmac
import re
from typing import Final

# GET PATH?challenge=… on a new connection; the response's field `proof`.
PATH: Final = "/health"
CHALLENGE_BYTES: Final = 16
_CHALLENGE: Final = re.compile(r"[0-9a-f]{32}")


def proof(token: str, challenge: str) -> str | None:
    """Return the token holder's response to a challenge, or None if the challenge is malformed."""
    if not _CHALLENGE.fullmatch(challenge):
        return None
    return hmac.new(token.encode(), f"tessera serves {challenge}".encode(), hashlib.sha256).hexdigest()
