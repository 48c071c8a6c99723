"""Per-token vocabulary data matches llama.cpp's data for all tokens."""

import pytest

from engine.runner.llama.native.llama_api import start_backends
from engine.runner.llama.native.model import load
from engine.runner.llama.native.vocabulary import LlamaVocabulary
from engine.runner.protocol import LoadSettings


@pytest.fixture(scope="module")
def loaded(bundled_model):
    settings = LoadSettings(path=str(bundled_model), n_ctx=256, n_threads=1)
    model = load(start_backends(), settings, lambda _fraction: True)
    yield model
    model.close()


def test_sets_of_tokens_hold_what_llama_cpp_says(loaded):
    api, vocab = loaded.api, loaded.vocab
    for name, asked in (("ends", api.llama_vocab_is_eog), ("control", api.llama_vocab_is_control)):
        one_by_one, whole = getattr(LlamaVocabulary(api, vocab), name), getattr(LlamaVocabulary(api, vocab), name)
        expected = {t for t in range(loaded.n_vocab) if asked(vocab, t)}
        assert expected
        assert {t for t in range(loaded.n_vocab) if t in one_by_one} == expected
        assert set(whole) == expected
        assert len(whole) == len(expected)
        assert whole | {-1} == expected | {-1}
        for alien in (-1, loaded.n_vocab, None):
            assert alien not in one_by_one
            assert alien not in whole


def test_pieces_put_a_text_together_and_are_asked_for_once(loaded):
    calls = []

    class Counting:
        def __getattr__(self, name):
            return getattr(loaded.api, name)

        def llama_token_to_piece(self, *arguments):
            calls.append(arguments[1])
            return loaded.api.llama_token_to_piece(*arguments)

    vocabulary = LlamaVocabulary(Counting(), loaded.vocab)
    text = "One, two — drei, 四."
    tokens = vocabulary.tokenize(text, add_special=False, parse_special=False)
    assert not calls
    for _ in range(2):
        assert b"".join(vocabulary.pieces[t] for t in tokens).decode() == text
    assert sorted(calls) == sorted(set(tokens))
    assert len(list(vocabulary.pieces)) == loaded.n_vocab
    assert vocabulary.pieces[-1] == vocabulary.pieces[loaded.n_vocab - 1]
    with pytest.raises(IndexError):
        vocabulary.pieces[loaded.n_vocab]
