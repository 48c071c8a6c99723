"""Option type for a list of positive numbers."""

import click


class Numbers(click.ParamType[tuple[int, ...]]):
    """Positive numbers separated by commas."""

    name = "N,N,…"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Parse `512,2048` to (512, 2048)."""
        if isinstance(value, tuple):
            return value
        try:
            numbers = tuple(int(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of numbers such as 512,2048", param, ctx)
        if not numbers or min(numbers) < 1 or max(numbers) > 1 << 20:
            self.fail(f"{value!r} has numbers out of range", param, ctx)
        return numbers
