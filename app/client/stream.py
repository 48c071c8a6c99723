"""A stream of values that another thread may close."""

from collections.abc import Iterator
from typing import Protocol, TypeVar

T_co = TypeVar("T_co", covariant=True)


class Stream(Protocol[T_co]):
    """Values as they arrive, until the server ends or somebody closes it."""

    def __iter__(self) -> Iterator[T_co]:
        """Values as they arrive. Raises: ApiError."""
        ...

    def close(self) -> None:
        """End the stream; the server stops the work behind it."""
        ...
