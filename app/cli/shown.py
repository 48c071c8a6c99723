"""Text of models, files and servers on a terminal: control characters are spelled out, never sent."""

from rich import markup

from app.tools.shown import shown_text


def escape(text: str) -> str:
    """Text as it is in rich's markup, with what a terminal would obey spelled out."""
    return markup.escape(shown_text(text))
