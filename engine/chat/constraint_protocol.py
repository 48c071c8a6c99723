"""What the server and the child that tries grammars say to each other, as msgpack."""

import msgspec


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A constraint to be tried."""

    kind: str
    source: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """`problem` is empty if the constraint can be honoured; then `kind` and `source` are what to send on."""

    kind: str
    source: str
    problem: str = ""
