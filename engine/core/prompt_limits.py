"""What cannot fit a context is refused by its length, before anything is made of it."""

from engine.core.errors import ContextOverflow
from engine.core.types import ModelFacts


def refuse_impossible(facts: ModelFacts, length: int, *, text: bool = True) -> None:
    """Refuse a prompt of `length` characters, or token ids, that cannot fit whatever it says.

    Raises: ContextOverflow.
    """
    per_token = facts.longest_token_bytes if text else 1
    least = -(-length // per_token) if per_token else 0
    if least > facts.largest_ctx:
        raise ContextOverflow(least, facts.largest_ctx, at_least=text)
