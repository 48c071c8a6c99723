"""Edits that wait for a decision, hunk by hunk: an answer's before they are written, an agent's afterwards."""

import random

import pytest

from app.code.edits.journal import Journal
from app.code.edits.parse import contents, parse_answer
from app.code.edits.reviews import EditReviews, regions_of
from app.code.edits.session import EditSession
from app.code.errors import FileChanged
from app.code.workspace import Workspace

BEFORE = "".join(f"line {number}\n" for number in range(1, 21))


def block(path, search, replace):
    halves = [f"{half}\n" if half else "" for half in (search, replace)]
    return f"{path}\n<<<<<<< SEARCH\n{halves[0]}=======\n{halves[1]}>>>>>>> REPLACE\n\n"


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "project"
    root.mkdir()
    (root / "one.txt").write_text(BEFORE)
    return root


@pytest.fixture
def reviews(tmp_path, root):
    journal = Journal(tmp_path / "state" / "edits.db")
    workspace = Workspace(root)
    edits = EditSession(workspace, journal)
    made = EditReviews(edits, workspace)
    edits.on_written = made.note_written
    yield made
    journal.close()


def offer(reviews, answer):
    reviews.offer(reviews._edits.propose(parse_answer(answer, frozenset({"one.txt"}))))
    reviews.refresh()


def hunks(reviews, root, path="one.txt"):
    file = root / path
    return reviews.hunks(path, file.read_bytes().decode() if file.exists() else "")


ANSWER = (
    block("one.txt", "line 3", "LINE 3")
    + block("one.txt", "line 10\nline 11", "line 10\nnew\nline 11")
    + block("one.txt", "line 15", "")
    + block("new.txt", "", "fresh")
)


def test_edits_of_an_answer_are_accepted_rejected_and_undone_one_by_one(reviews, root):
    offer(reviews, ANSWER)
    assert reviews.paths == {"one.txt": False, "new.txt": True}
    third, insert, gone = hunks(reviews, root)
    assert [(r.first, r.last, r.other) for hunk in (third, insert, gone) for r in hunk.regions] == [
        (3, 3, ("LINE 3",)),
        (11, 10, ("new",)),
        (15, 15, ()),
    ]
    assert reviews.apply([insert.number], "test", shown=reviews.proposal) == ("one.txt",)
    now = BEFORE.replace("line 10\n", "line 10\nnew\n")
    assert (root / "one.txt").read_text() == now
    third, gone = hunks(reviews, root)
    assert [hunk.regions[0].first for hunk in (third, gone)] == [3, 16], "the lines have moved"
    rejected = reviews.dismiss([third.number])
    assert [hunk.regions[0].first for hunk in hunks(reviews, root)] == [16]
    assert (root / "one.txt").read_text() == now, "rejecting writes nothing"
    reviews.offer_again(rejected)
    assert [hunk.regions[0].first for hunk in hunks(reviews, root)] == [3, 16]
    assert reviews.undo() == ("one.txt",)
    assert (root / "one.txt").read_text() == BEFORE
    assert len(hunks(reviews, root)) == 3, "what was undone is offered again"
    (fresh,) = hunks(reviews, root, "new.txt")
    reviews.apply([fresh.number], "test", shown=reviews.proposal)
    assert (root / "new.txt").read_text() == "fresh\n"
    assert reviews.paths == {"one.txt": False}


def test_an_edit_of_another_edit_s_lines_waits_for_it(reviews, root):
    offer(reviews, block("one.txt", "line 3", "line three") + block("one.txt", "line three", "line 3, really"))
    (first,) = hunks(reviews, root)
    reviews.apply([first.number], "test", shown=reviews.proposal)
    (second,) = hunks(reviews, root)
    assert second.regions[0].other == ("line 3, really",)


def test_a_file_that_somebody_changes_shows_no_hunks_of_its_old_text(reviews, root):
    offer(reviews, block("one.txt", "line 3", "LINE 3"))
    (root / "one.txt").write_text("precious\n")
    assert hunks(reviews, root) == ()
    with pytest.raises(FileChanged):
        reviews.apply([0], "test", shown=reviews.proposal)
    reviews.locate_again()
    assert reviews.paths == {}
    assert "was" not in (root / "one.txt").read_text()


def by_agent(reviews, *answers):
    reviews.is_by_agent = True
    for answer in answers:
        reviews._edits.apply(reviews._edits.propose(parse_answer(answer, frozenset({"one.txt"}))))
    reviews.is_by_agent = False
    reviews.refresh()


def test_edits_of_the_agent_are_kept_or_taken_back_one_by_one(reviews, root):
    by_agent(reviews, block("one.txt", "line 3", "LINE 3"), block("one.txt", "line 15", ""))
    changed, gone = hunks(reviews, root)
    assert all(hunk.is_written for hunk in (changed, gone))
    assert (changed.regions[0].first, changed.regions[0].other) == (3, ("line 3",))
    assert (gone.regions[0].first, gone.regions[0].last, gone.regions[0].other) == (15, 14, ("line 15",))
    reviews.keep([changed])
    assert [hunk.regions[0].other for hunk in hunks(reviews, root)] == [("line 15",)]
    reviews.take_back(hunks(reviews, root))
    assert (root / "one.txt").read_text() == BEFORE.replace("line 3\n", "LINE 3\n")
    reviews.refresh()
    assert hunks(reviews, root) == ()
    reviews.undo()
    assert "line 15" not in (root / "one.txt").read_text(), "the decision itself can be undone"
    assert len(hunks(reviews, root)) == 1


def test_a_file_of_the_agent_is_kept_or_deleted(reviews, root):
    by_agent(reviews, block("new.txt", "", "fresh"))
    (made,) = hunks(reviews, root, "new.txt")
    reviews.take_back([made])
    assert not (root / "new.txt").exists()
    reviews.undo()
    (made,) = hunks(reviews, root, "new.txt")
    reviews.keep([made])
    assert hunks(reviews, root, "new.txt") == ()
    assert (root / "new.txt").read_text() == "fresh\n"


def test_lines_that_a_person_wrote_after_the_agent_are_never_taken_back(reviews, root):
    by_agent(reviews, block("one.txt", "line 3", "LINE 3"))
    (shown,) = hunks(reviews, root)
    (root / "one.txt").write_text((root / "one.txt").read_text() + "mine\n")
    with pytest.raises(FileChanged):
        reviews.take_back([shown])
    reviews.refresh()
    assert hunks(reviews, root) == ()
    assert (root / "one.txt").read_text().endswith("mine\n")


def test_lines_of_a_person_between_two_edits_of_the_agent_stay(reviews, root):
    by_agent(reviews, block("one.txt", "line 3", "LINE 3"))
    (root / "one.txt").write_text((root / "one.txt").read_text() + "mine\n")
    by_agent(reviews, block("one.txt", "line 5", "LINE 5"))
    (shown,) = hunks(reviews, root)
    reviews.take_back([shown])
    assert (root / "one.txt").read_text() == BEFORE.replace("line 3\n", "LINE 3\n") + "mine\n"


def test_a_second_click_decides_about_no_other_edit(reviews, root):
    """Ids change with each decision, so contents are compared."""
    offer(
        reviews,
        block("one.txt", "line 3", "LINE 3") + block("one.txt", "line 5", "LINE 5") + block("new.txt", "", "fresh"),
    )
    shown = hunks(reviews, root)[0]
    assert reviews.still_pending([shown]) == (shown.number,)
    rejected = reviews.dismiss([shown.number])
    assert [(place, hunk.search) for place, hunk in rejected] == [(0, ("line 3",))]
    (fifth,) = hunks(reviews, root)
    assert fifth.number == shown.number
    assert reviews.still_pending([shown]) == ()
    stale = reviews.proposal
    reviews.apply([fifth.number], "test", shown=stale)
    assert reviews.still_pending([fifth]) == ()
    assert reviews.apply([fifth.number], "test", shown=stale) == ()
    assert (root / "one.txt").read_text() == BEFORE.replace("line 5", "LINE 5")


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("seed", range(8))
def test_any_order_of_decisions_leaves_exactly_what_was_accepted(reviews, root, seed, ending):
    """With all edits accepted the text is the agent's; with all rejected it is the earlier text, byte for byte."""
    chance = random.Random(seed)
    before = ending.join(chance.choice("abc") for _ in range(30)) + chance.choice(["", ending])
    lines = before.split(ending)
    for _ in range(6):
        place = chance.randrange(len(lines) + 1)
        lines[place : place + chance.randrange(3)] = [chance.choice("abcd") for _ in range(chance.randrange(3))]
    after = ending.join(lines)
    file = root / "one.txt"
    for keeps in (True, False):
        reviews.clear()
        file.write_bytes(before.encode())
        reviews.is_by_agent = True
        reviews._edits.replace_text(reviews._workspace.read("one.txt"), after)
        reviews.is_by_agent = False
        reviews.refresh()
        while left := hunks(reviews, root):
            one = chance.choice(left)
            reviews.keep([one]) if keeps else reviews.take_back([one])
            reviews.refresh()
        assert file.read_bytes().decode() == (after if keeps else before)


def test_regions_are_where_the_texts_differ():
    old, new = contents("a\nb\nc\nd\n"), contents("a\nB\nc\n")
    assert [(r.first, r.last, r.other) for r in regions_of(old, new)] == [(2, 2, ("B",)), (4, 4, ())]
    assert regions_of(old, old) == ()
    many = [str(number) for number in range(3000)]
    (all_of_it,) = regions_of(many, many[::-1])
    assert (all_of_it.first, all_of_it.last, len(all_of_it.other)) == (1, 3000, 3000)
