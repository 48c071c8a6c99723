"""Sentences of engine.library: why a model is proposed."""

from typing import Final

LIBRARY: Final = {
    "starter_fits": "{use}: about {share:.0%} of the memory at 4 bits",
    "starter_fits_sparse": "{use}: about {share:.0%} of the memory at 4 bits; reads only {active_b:.1f} B parameters a token, so it is fast",
    "starter_chat": "The largest chat model of the list that fits",
    "starter_coding": "The largest coding model of the list that fits",
    "starter_fim": "Completes code while you type",
    "starter_embedding": "Finds documents by meaning",
    "starter_vision": "Reads pictures",
    "starter_tiny": "Small and quick, for everyday questions on any machine",
}
