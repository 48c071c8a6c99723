"""What is told of a picture that OCR could not read."""

import pytest

from engine.documents.formats import pdf
from engine.documents.types import BadDocument


@pytest.mark.parametrize("said", ["Failed to allocate memory for requested buffer of size 9", "std::bad_alloc"])
def test_memory_that_ran_out_is_no_fault_of_the_page(monkeypatch, said):
    def recognize(*_, **__):
        raise RuntimeError(said)

    monkeypatch.setattr(pdf, "_recognizer", lambda: recognize)
    with pytest.raises(MemoryError):
        pdf.read_image(None)


def test_another_fault_is_one_of_the_page(monkeypatch):
    def recognize(*_, **__):
        raise RuntimeError("Non-zero status code while running Conv")

    monkeypatch.setattr(pdf, "_recognizer", lambda: recognize)
    with pytest.raises(BadDocument, match="OCR could not read it"):
        pdf.read_image(None)
