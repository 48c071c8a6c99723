"""What a child that `run_child` started answers: one JSON object on a line of its standard output."""

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

MAX_OUTPUT_BYTES = 1 << 20


def write_answer(answer: Mapping[str, Any]) -> None:
    """Write the answer; `error` in it says why there is no other."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def answer_with(find: Callable[[], Mapping[str, Any]], *errors: type[Exception]) -> int:
    """Write what `find` finds, or which of `errors` stopped it; returns the exit code of the child."""
    try:
        found = find()
    except errors as error:
        write_answer({"error": str(error)})
        return 1
    write_answer(found)
    return 0


def answer_in(stdout: bytes) -> Mapping[str, Any] | None:
    """The last line that is a JSON object: native libraries print around it."""
    for line in reversed(stdout[:MAX_OUTPUT_BYTES].splitlines()):
        if line.lstrip().startswith(b"{"):
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                return None
            return found if isinstance(found, dict) else None
    return None
