"""The real llama runner with prescribed tokens: every prompt goes through the model and its cache.

`python prescribed_runner.py FOLDER PARENT_PID`: each generation outputs the next line of the newest
FOLDER/script*.jsonl, as in fake_runner.py, and then ends. Without a line it ends at once.
"""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from engine.runner import main
from engine.runner.generation import scheduler
from engine.runner.generation.sequence import Sequence
from engine.runner.generation.vocabulary import Vocabulary


class Prescription:
    """Replies in order; each belongs to the first generation that samples after the one before."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._used = 0
        self._replies: dict[int, list[int]] = {}

    def token(self, sequence: Sequence, vocabulary: Vocabulary) -> int:
        """The next token of the generation's reply, or an end."""
        if sequence.id not in self._replies:
            text = self._next()
            self._replies[sequence.id] = vocabulary.tokenize(text, add_special=False, parse_special=False)
        reply = self._replies[sequence.id]
        return reply[sequence.n_generated] if sequence.n_generated < len(reply) else min(vocabulary.ends)

    def _next(self) -> str:
        lines = max(self._folder.glob("script*.jsonl")).read_text("utf-8").splitlines()
        self._used += 1
        return "".join(json.loads(lines[self._used - 1])["pieces"]) if self._used <= len(lines) else ""


if __name__ == "__main__":
    scheduler._forced = Prescription(Path(sys.argv[1])).token
    sys.argv[1] = "llama"
    code = main.main()
    sys.stdout.flush()
    os._exit(code)
