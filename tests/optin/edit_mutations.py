"""Applies edits made by mutation of real commits: none may break a file, write a wrong one or be half applied.

    python tests/optin/edit_mutations.py REPOSITORY... [--count 2000] [--seed 1] [--out FILE]

Every change of a text file in the repositories' newest commits becomes an answer in one of four formats (blocks,
Cline, unified diff, Codex), with one of fourteen kinds of damage. Afterwards each file must be exactly as before
or exactly as in the commit.

Measured on 2026-11-25 on this repository (seed 1): 2,000 answers from 1,006 changes, 1,325 applied, 675 refused
with a reason, none broken, none ignored.
"""

import argparse
import collections
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.edit_mutations import Change, run_trial, trials

_MAX_BYTES = 200_000


def changes_of(repository: str, limit: int) -> list[Change]:
    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", repository, *arguments], capture_output=True, check=True)
        return done.stdout.decode("utf-8", "surrogateescape")

    found: list[Change] = []
    for commit in git("log", "--no-merges", "--format=%H", "-n", str(limit)).split():
        if not git("rev-list", "--parents", "-n1", commit).split()[1:]:
            continue
        for line in git("diff-tree", "-r", "--no-commit-id", "--diff-filter=M", commit).splitlines()[:8]:
            facts, path = line.split("\t", 1)
            old, new = facts.split()[2:4]
            try:
                before, after = git("cat-file", "blob", old), git("cat-file", "blob", new)
            except subprocess.CalledProcessError:
                continue
            is_text = "\0" not in before and not path.startswith('"') and len(before) < _MAX_BYTES
            if is_text and before.endswith("\n") and after.endswith("\n") and "\r" not in before + after:
                found.append(Change(path, before, after))
        if len(found) >= limit:
            break
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("repositories", nargs="+")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    share = max(options.count // (2 * len(options.repositories)), 20)
    changes = [change for repository in options.repositories for change in changes_of(repository, share)]
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    broken = 0
    for trial in trials(changes, random.Random(options.seed), options.count):
        with tempfile.TemporaryDirectory() as folder:
            state, reported = run_trial(trial, Path(folder))
        counts[trial.damage][state.partition(":")[0]] += 1
        if state.startswith(("broken", "ignored")):
            broken += 1
            print(
                f"--- {state} ({trial.format}, {trial.damage}) {reported}\n{trial.answer[:3000]}", file=sys.stderr
            )
    for damage, found in counts.items():
        print(f"{damage:22}", dict(found))
    print(f"{len(changes)} changes, {options.count} answers, {broken} broken or ignored")
    if options.out:
        options.out.write_text(
            json.dumps({"changes": len(changes), "answers": options.count, "broken": broken, **counts})
        )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
