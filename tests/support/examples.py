"""How many examples a property test draws."""

from hypothesis import settings

LEAST = 25


def examples(count: int) -> int:
    """`count` where the seeds are random (tests/optin/random_seeds.py), a quarter of it where they never change."""
    return count if settings.get_current_profile_name() == "random" else max(LEAST, count // 4)
