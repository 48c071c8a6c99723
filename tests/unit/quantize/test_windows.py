"""A text as windows of tokens: tokenized once for all steps of a job, and again for another text or vocabulary."""

import numpy as np
import pytest

from quantize.native.calibration import read_windows


class Letters:
    """A model whose tokens are letters; a bracket is a special token if those count."""

    bos = None

    def __init__(self, vocabulary="letters", shift=0):
        self.vocabulary, self.shift, self.spelled = vocabulary, shift, 0

    def tokenize(self, text, *, parse_special):
        self.spelled += 1
        return np.array([999 if parse_special and c == "<" else ord(c) + self.shift for c in text], np.int32)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("a<b>" * 100)
    return path


def test_the_second_step_takes_what_the_first_one_spelled(text, tmp_path):
    first, second, plain = Letters(), Letters(), Letters()
    one, two = (read_windows(m, text, 160, 16, spread=True, cache_dir=tmp_path) for m in (first, second))
    np.testing.assert_array_equal(one, read_windows(plain, text, 160, 16, spread=True))
    np.testing.assert_array_equal(two, one)
    assert two.dtype == one.dtype == np.int32
    assert (first.spelled, second.spelled, plain.spelled) == (2, 0, 2)
    assert 999 in one[0]
    assert 999 not in one[1]


def test_another_vocabulary_or_text_is_spelled_anew(text, tmp_path):
    read_windows(Letters(), text, 160, 16, cache_dir=tmp_path)
    other = Letters("others", 1)
    found = read_windows(other, text, 160, 16, cache_dir=tmp_path)
    np.testing.assert_array_equal(found, read_windows(Letters(shift=1), text, 160, 16))
    text.write_text("a<b>" * 99 + "c<b>")
    again = Letters()
    read_windows(again, text, 160, 16, cache_dir=tmp_path)
    assert (other.spelled, again.spelled) == (2, 2)


@pytest.mark.parametrize("left", [b"", b"half a", b"PK\x03\x04 no archive"])
def test_what_is_not_whole_is_spelled_again(text, tmp_path, left):
    wanted = read_windows(Letters(), text, 160, 16, cache_dir=tmp_path)
    (kept,) = (tmp_path / "tokens").iterdir()
    kept.write_bytes(left)
    again = Letters()
    np.testing.assert_array_equal(read_windows(again, text, 160, 16, cache_dir=tmp_path), wanted)
    assert again.spelled == 2
    np.testing.assert_array_equal(read_windows(Letters(), text, 160, 16, cache_dir=tmp_path), wanted)
