"""Reading and writing saved prompts. Every function runs on the store's one thread."""

import apsw

from app.db.records import Prompt


def prompts(connection: apsw.Connection) -> list[Prompt]:
    """All saved prompts by name."""
    return [
        Prompt(*row)
        for row in connection.execute("SELECT id, name, text FROM prompts ORDER BY name COLLATE NOCASE, id")
    ]


def save_prompt(connection: apsw.Connection, name: str, text: str) -> None:
    """Make or replace the prompt of that name."""
    connection.execute(
        "INSERT INTO prompts(name, text) VALUES (?, ?) ON CONFLICT(name) DO UPDATE SET text = excluded.text",
        (name, text),
    )


def remove_prompt(connection: apsw.Connection, prompt_id: int) -> None:
    """Remove a prompt."""
    connection.execute("DELETE FROM prompts WHERE id = ?", (prompt_id,))
