"""Edits of real texts in every format, damaged as models damage them, and the rule that no file may break."""

import difflib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.code.edits.journal import Journal
from app.code.edits.parse import parse_answer
from app.code.edits.session import EditSession
from app.code.workspace import Workspace

Group = list[tuple[str, str]]  # (mark, line) of a diff: " ", "-" or "+"


@dataclass
class Change:
    """One file's change as a commit made it. Both texts end with a newline."""

    path: str
    before: str
    after: str


@dataclass
class Trial:
    """`files` before; `after` if every edit is applied; `answer` in one format with one kind of damage."""

    format: str
    damage: str
    files: dict[str, str]
    after: dict[str, str]
    answer: str


def groups_of(change: Change, context: int) -> list[Group]:
    old, new = change.before.split("\n")[:-1], change.after.split("\n")[:-1]
    found = []
    for group in difflib.SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(context):
        lines: Group = []
        for tag, a, b, c, d in group:
            if tag == "equal":
                lines += [(" ", line) for line in old[a:b]]
            else:
                lines += [("-", line) for line in old[a:b]] + [("+", line) for line in new[c:d]]
        found.append(lines)
    return found


def halves(group: Group) -> tuple[list[str], list[str]]:
    return [x for mark, x in group if mark != "+"], [x for mark, x in group if mark != "-"]


def block(path: str, group: Group, begin: str = "<<<<<<< SEARCH", end: str = ">>>>>>> REPLACE") -> str:
    old, new = halves(group)
    return "\n".join([path, begin, *old, "=======", *new, end, ""])


def as_blocks(path: str, groups: list[Group], rng: random.Random) -> str:
    del rng
    return "\n".join(f"```\n{block(path, group)}```" for group in groups) + "\n"


def as_cline(path: str, groups: list[Group], rng: random.Random) -> str:
    del rng
    return "".join(block(path, group, "------- SEARCH", "+++++++ REPLACE") for group in groups)


def as_diff(path: str, groups: list[Group], rng: random.Random) -> str:
    parts = [f"--- a/{path}", f"+++ b/{path}"]
    for group in groups:
        at = rng.randint(1, 900)
        count = rng.choice([len(halves(group)[0]), rng.randint(1, 40)])
        parts += [f"@@ -{at},{count} +{at},{count} @@" if rng.random() < 0.7 else "@@ ... @@"]
        parts += [mark + line for mark, line in group]
    return "```diff\n" + "\n".join(parts) + "\n```\n"


def as_patch(path: str, groups: list[Group], rng: random.Random) -> str:
    del rng
    parts = ["*** Begin Patch", f"*** Update File: {path}"]
    for group in groups:
        parts += ["@@", *(mark + line for mark, line in group)]
    return "\n".join([*parts, "*** End Patch", ""])


FORMATS: dict[str, Callable[[str, list[Group], random.Random], str]] = {
    "blocks": as_blocks,
    "cline": as_cline,
    "diff": as_diff,
    "patch": as_patch,
}


def _lost_indent(groups: list[Group], rng: random.Random) -> list[Group]:
    del rng
    result = []
    for group in groups:
        indents = [len(line) - len(line.lstrip(" ")) for _, line in group if line.strip()]
        cut = min(indents, default=0)
        result.append([(mark, line[cut:]) for mark, line in group])
    return result


def _lost_trailing(groups: list[Group], rng: random.Random) -> list[Group]:
    del rng
    return [[(mark, line.rstrip() if mark != "+" else line) for mark, line in group] for group in groups]


def _misquoted(groups: list[Group], rng: random.Random) -> list[Group]:
    groups = [list(group) for group in groups]
    group = rng.choice(groups)
    quoted = [i for i, (mark, line) in enumerate(group) if mark != "+" and line.strip()]
    if quoted:
        at = rng.choice(quoted)
        group[at] = (group[at][0], group[at][1] + rng.choice(["x", " // x", ";;"]))
    return groups


def _dropped_line(groups: list[Group], rng: random.Random) -> list[Group]:
    groups = [list(group) for group in groups]
    group = rng.choice(groups)
    marks = "".join(mark for mark, _ in group)  # a line next to a change may be left out without a contradiction
    inner = [i for i in range(1, len(group) - 1) if marks[i - 1 : i + 2] == "   " and group[i][1].strip()]
    if inner:
        del group[rng.choice(inner)]
    return groups


def _elided(groups: list[Group], rng: random.Random) -> list[Group]:
    groups = [list(group) for group in groups]
    group = rng.choice(groups)
    group.insert(rng.randint(1, len(group)), ("+", "    # ... existing code ..."))
    return groups


QUOTING: dict[str, Callable[[list[Group], random.Random], list[Group]]] = {
    "none": lambda groups, rng: groups,
    "lost indentation": _lost_indent,
    "lost trailing blanks": _lost_trailing,
    "misquoted": _misquoted,
    "line dropped": _dropped_line,
    "elided": _elided,
}


# The file differs from the one that the answer's author saw; a second copy of the code leaves no place certain.
FILES: dict[str, Callable[[Change], tuple[str, str]]] = {
    "decoy": lambda change: (change.before + "\n" + change.before, ""),
    "stale file": lambda change: ("// newer line\n" + change.before, "// newer line\n" + change.after),
    "crlf file": lambda change: (change.before.replace("\n", "\r\n"), change.after.replace("\n", "\r\n")),
    "bom": lambda change: ("\ufeff" + change.before, "\ufeff" + change.after),
}


def trials(changes: Sequence[Change], rng: random.Random, count: int) -> Iterator[Trial]:
    """`count` answers that each edit one or two of the files, with one kind of damage each."""
    kinds = [*QUOTING, *FILES, "cut", "twice", "unnamed", "shuffled"]
    for number in range(count):
        chosen = rng.sample(changes, 2 if rng.random() < 0.3 else 1)
        if len({change.path for change in chosen}) < len(chosen):
            chosen = chosen[:1]
        damage = kinds[number % len(kinds)]
        form = rng.choice(list(FORMATS))
        files = {change.path: change.before for change in chosen}
        after = {change.path: change.after for change in chosen}
        answer = "Here are the changes.\n\n"
        for change in chosen:
            groups = groups_of(change, rng.choice([1, 2, 3, 3, 5]))
            if damage in QUOTING:
                groups = QUOTING[damage](groups, rng)
            if damage == "shuffled":
                rng.shuffle(groups)
            text = FORMATS[form](change.path, groups, rng)
            answer += text * (2 if damage == "twice" else 1) + "\n"
        first = chosen[0]
        if damage == "cut":
            answer = answer[: rng.randint(len(answer) // 3, len(answer))]
        elif damage == "unnamed":
            answer = answer.replace(first.path, "", 1)
        elif damage in FILES:
            files[first.path], after[first.path] = FILES[damage](first)
        files["other/" + first.path] = first.before
        after["other/" + first.path] = first.before
        yield Trial(form, damage, files, after, answer)


def run_trial(trial: Trial, root: Path) -> tuple[str, list[str]]:
    """Apply the answer in an empty folder; return what happened ("broken: why" if wrong) and what was reported."""
    project = root / "project"
    for name, text in trial.files.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    journal = Journal(root / "journal.db")
    try:
        session = EditSession(Workspace(project), journal)
        proposal = session.propose(parse_answer(trial.answer, frozenset(trial.files), is_cut=trial.damage == "cut"))
        reported = [r.reason for r in proposal.refused] + [m.reason for m in proposal.malformed]
        written = session.apply(proposal)
        now = _files(project)
        state = _judged(trial, now, written, reported)
        if written:
            session.undo()
            if _files(project) != trial.files:
                state = "broken: undo gives other files"
        return state, reported
    finally:
        journal.close()


def _files(project: Path) -> dict[str, str]:
    return {
        p.relative_to(project).as_posix(): p.read_bytes().decode("utf-8", "surrogateescape")
        for p in project.rglob("*")
        if p.is_file()
    }


def _judged(trial: Trial, now: dict[str, str], written: tuple[str, ...], reported: list[str]) -> str:
    for name in now.keys() | trial.files.keys():
        if name not in trial.files:
            return f"broken: {name} was made"
        if now.get(name) not in {trial.files[name], trial.after[name]}:
            return f"broken: {name} is neither as before nor as meant"
    if written:
        return "applied"
    return "refused" if reported else "ignored"
