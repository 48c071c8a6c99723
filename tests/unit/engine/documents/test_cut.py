"""Document readers by type; splitting pages into passages."""

import time

import pytest

from engine.documents import formats
from engine.documents.reader_child import MOST_CHARS, Cutter
from engine.documents.types import Block, Page

LONG_CHARS = 40_000_000
# One pass over it takes well under a second; copying the remainder for every chunk took minutes.
MOST_S = 20


def test_a_block_without_ends_is_cut_once_through():
    text = "whale" * (LONG_CHARS // 5)
    began = time.process_time()
    read = Cutter().cut(Page(1, (Block("text", text),), "", ""))
    assert time.process_time() - began < MOST_S
    assert "".join(chunk.text for chunk in read.chunks) == text
    assert max(len(chunk.text) for chunk in read.chunks) <= MOST_CHARS


@pytest.mark.parametrize("kind", formats._READERS)
def test_every_kind_of_file_has_its_reader(kind):
    """They are looked up by name when the first file of the type is read."""
    assert callable(formats.reader_of(kind))
