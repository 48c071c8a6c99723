"""What the server and the child that tries grammars say to each other, as msgpack."""

import msgspec


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A constraint to be tried. Not `strict`: what of a schema cannot be enforced may be dropped."""

    kind: str
    source: str
    strict: bool = True


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """`problem` is empty if the constraint can be honoured; then `kind` and `source` are what to send on.

    `dropped` names what of a schema is not enforced.
    """

    kind: str
    source: str
    problem: str = ""
    dropped: tuple[str, ...] = ()
