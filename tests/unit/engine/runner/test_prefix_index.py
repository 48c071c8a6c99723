import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.runner.llama.cache.prefix_index import PrefixIndex, StoredPrefix, shared_length

TOKEN = st.sampled_from([0, 1, 2, 256, 70_000, -1, -300])  # images are represented by negative tokens
TEXT = st.lists(TOKEN, max_size=8)


def tokens(values):
    return np.asarray(values, np.int32)


def index_of(texts):
    entries = [StoredPrefix((), tokens(text), 1) for text in texts]
    index = PrefixIndex()
    for entry in entries:
        index.add(entry)
    return index, entries


@given(st.lists(TEXT, max_size=20, unique_by=tuple), TEXT)
def test_entries_come_by_what_they_share(texts, asked):
    index, entries = index_of(texts)
    found = list(index.sharing(tokens(asked), ()))
    lengths = [length for _, length in found]
    assert lengths == sorted(lengths, reverse=True)
    shared = {id(e): shared_length(e.tokens, tokens(asked)) for e in entries}
    assert {id(e): length for e, length in found} == {i: length for i, length in shared.items() if length}
    assert list(index.sharing(tokens(asked), (("other", 1.0),))) == []


@given(st.lists(TEXT, max_size=20, unique_by=tuple), TEXT)
def test_beginnings_of_a_text_are_found(texts, asked):
    index, _ = index_of(texts)
    found = sorted(list(e.tokens) for e in index.beginnings(tokens(asked), ()))
    assert found == sorted(t for t in texts if t and t == asked[: len(t)])


@pytest.mark.slow
@given(st.lists(st.tuples(TEXT, st.sets(st.integers(1, 7))), max_size=20), TEXT)
def test_the_best_is_what_can_be_brought_furthest(stored, asked):
    index = PrefixIndex()
    entries = []
    for text, lengths in stored:
        marks = tuple((length, 1) for length in sorted(lengths) if length < len(text))
        entries.append(StoredPrefix((), tokens(text), 9, marks=marks))
        index.add(entries[-1])
    for whole_only in (True, False):
        found, length = index.best(tokens(asked), (), whole_only=whole_only)
        usable = [e.usable(shared_length(e.tokens, tokens(asked)), whole_only=whole_only) for e in entries]
        assert length == max(usable, default=0)
        assert (found is None) == (length == 0)
        assert found is None or usable[entries.index(found)] == length
    for entry in entries:
        index.remove(entry)
    assert index.best(tokens(asked), (), whole_only=True) == (None, 0)


@given(st.lists(TEXT, max_size=20), st.lists(st.integers(0, 19), max_size=20))
def test_what_is_removed_is_not_found_even_among_its_like(texts, removed):
    index, entries = index_of(texts)
    gone = {i for i in removed if i < len(entries)}
    for i in removed:
        if i < len(entries):
            index.remove(entries[i])
    left = {id(e) for text in texts if text for e, _ in index.sharing(tokens(text), ())}
    assert left == {id(e) for i, e in enumerate(entries) if i not in gone and len(e.tokens)}


def test_shared_length():
    assert shared_length(tokens([1, 2, 3]), tokens([1, 2])) == 2
    assert shared_length(tokens([5]), tokens([6])) == 0
    assert shared_length(tokens([]), tokens([6])) == 0
