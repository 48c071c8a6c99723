"""The head reads each token with the target's hidden row of the previous position, whatever became of drafts."""

import ctypes

import numpy as np
import pytest

from engine.runner.llama.native import model as llama_model
from engine.runner.llama.native.batch import Batch, Logits
from engine.runner.llama.native.llama_api import start_backends
from engine.runner.llama.speculative.mtp import MtpHead
from engine.runner.protocol import LoadSettings
from tests.support.models.mtp_model import write_mtp_model
from tests.support.runner_calls import EXACT

pytestmark = pytest.mark.native


class Target:
    """Decodes one sequence with the head, which repeats the newest token as long as rows match."""

    def __init__(self, path):
        settings = LoadSettings(
            path=path, n_ctx=512, n_threads=1, n_parallel=2, mtp=True, n_batch=256, n_ubatch=128, **EXACT
        )
        api = start_backends()
        self.loaded = llama_model.load(api, settings, lambda _: True)
        self.batch, self.logits = Batch(self.loaded), Logits(self.loaded)
        self.head = MtpHead(self.loaded)
        self.tokens = []

    def read(self, tokens, settled, owner=1, *, follow=True):
        """Append tokens, of which `settled` stay; then draft one."""
        start = len(self.tokens)
        self.batch.clear()
        wide = len(tokens) > 8  # a prompt: only the last row's logits are needed
        if wide:
            self.batch.add_prompt(tokens, start, 0, last=True)
        else:
            for i, token in enumerate(tokens):
                self.batch.add(token, start + i, 0)
        api = self.loaded.api
        assert self.batch.decode() == 0
        rows = self.logits.rows(self.batch.outputs)
        self.tokens = [*self.tokens, *tokens[:settled]]
        api.llama_memory_seq_rm(self.loaded.memory, 0, len(self.tokens), -1)
        if follow:
            self.head.follow(owner, self.tokens, start, settled, (0, len(tokens)))
        return int(np.argmax(rows[0 if wide else settled - 1]))

    def guess(self, newest, length=3, owner=1):
        return self.head.propose(owner, [*self.tokens, newest], length, forced=True)

    def close(self):
        self.head.close()
        self.loaded.close()


@pytest.fixture
def target(tmp_path):
    made = Target(write_mtp_model(tmp_path / "newest.gguf", "newest"))
    yield made
    made.close()


PROMPT = [(37 * i * i + 11 * i) % 500 for i in range(20)]


def test_rows_stay_aligned_through_right_and_wrong_guesses(target):
    newest = target.read(PROMPT, 20)
    assert target.guess(newest)[0] == newest
    after = target.read([newest, 3, 4, 5], 1)  # three rejected draft tokens
    assert target.guess(after)[0] == after
    assert target.guess(after, 1) == [after]  # repeated, as after a step that failed
    nothing = target.read([after], 1)  # a step without draft tokens
    then = target.read([nothing], 1)
    assert target.guess(then)[0] == then
    several = target.read([then, 9, 8, 7], 3)  # the first two are accepted
    assert target.guess(several)[0] == several


def test_a_prompt_read_at_once_leaves_the_head_what_its_tokens_one_by_one_do(tmp_path):
    path, said = write_mtp_model(tmp_path / "random.gguf", "random"), []
    for step in (len(PROMPT), 1):
        target = Target(path)
        for start in range(0, len(PROMPT), step):
            if start:
                assert target.guess(PROMPT[start], 1)
            newest = target.read(PROMPT[start : start + step], step)
        assert target.guess(newest, 1)
        said.append(target.head._logits.rows(1)[0].copy())
        target.close()
    assert np.abs(said[0]).max() > 0.1
    np.testing.assert_allclose(said[0], said[1], atol=1e-4)


def test_the_head_is_told_which_rows_are_whose(target):
    batch = target.batch
    batch.add(5, 30, 1)
    batch.add_prompt([7, 8, 9], 4, 0, last=True)
    assert batch.spans() == {1: (30, 0, 1), 0: (4, 1, 3)}
    batch.clear()
    assert batch.spans() == {}


def test_a_part_that_was_not_followed_is_left_out(target):
    newest = target.read(PROMPT, 20)
    target.read([newest, 5, 6], 3, follow=False)
    assert target.guess(7) == []
    newest = target.read([7, 8], 2)
    assert target.guess(newest)[0] == newest


def test_the_next_turn_goes_on_where_the_last_ended(target):
    newest = target.read(PROMPT, 20)
    assert target.guess(newest, owner=1)
    newest = target.read([newest, 40, 41], 3, owner=2)
    assert target.guess(newest, owner=2)[0] == newest
    assert target.head._slots[0].owner == 2
    target.tokens = target.tokens[:12]  # another ending of the same prefix
    target.loaded.api.llama_memory_seq_rm(target.loaded.memory, 0, 12, -1)
    newest = target.read([60, 61, 62], 3, owner=3)
    assert target.guess(newest, owner=3)[0] == newest


def test_long_prompts_are_read_in_pieces(target):
    first = target.read([(7 * i) % 500 for i in range(200)], 200)
    newest = target.read([first, *((11 * i) % 500 for i in range(199))], 200)
    assert len(target.head._slots[0].waiting) < 400
    assert target.guess(newest)[0] == newest


def test_rows_that_are_no_numbers_are_not_read(target, monkeypatch):
    newest = target.read(PROMPT, 20)
    size = target.head._n_embd
    broken = np.full((4, size), np.nan, np.float32)
    pointer = broken.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    with monkeypatch.context() as patch:
        patch.setattr(target.head._ext, "llama_get_embeddings_nextn", lambda _context: pointer)
        newest = target.read([newest, 4, 5, 6], 4)
    assert target.guess(newest) == []
    newest = target.read([newest], 1)
    assert target.guess(newest)[0] == newest


def test_a_file_without_a_head_is_refused(bundled_model):
    loaded = llama_model.load(start_backends(), LoadSettings(path=str(bundled_model), mtp=True), lambda _: True)
    with pytest.raises(llama_model.LoadFailed, match="no head"):
        MtpHead(loaded)
    loaded.close()
