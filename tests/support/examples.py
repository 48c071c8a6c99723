"""The number of examples in a property test."""

from hypothesis import settings

LEAST = 25


def examples(count: int) -> int:
    """Return `count` with random seeds (tests/optin/random_seeds.py), and a quarter of it with fixed seeds."""
    return count if settings.get_current_profile_name() == "random" else max(LEAST, count // 4)
