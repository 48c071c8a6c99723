"""Reports about an image that OCR could not read."""

from types import SimpleNamespace

import numpy as np
import pytest

from engine.documents.formats import pdf
from engine.documents.types import NO_OCR_HERE, BadDocument, Block


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


LINES = ("the first line", "the second line", "the third line")


def drawn():
    """A page of three lines, each a row of pixels with its own number."""
    page = np.zeros((30, 200, 3), np.uint8)
    for number in range(len(LINES)):
        page[5 + 10 * number, 10:190] = number + 1
    return page


def recognized(pixels, use_cls):
    """Lines in any orientation; like the package, it reads them well only upright or sideways."""
    assert not use_cls, "its classifier leaves turned lines in their order"
    upright = pixels.shape[1] > pixels.shape[0]
    is_right = upright and pixels[5, 100, 0] == 1
    boxes, scores = [], []
    for number in range(len(LINES)):
        ys, xs = np.nonzero(pixels[:, :, 0] == number + 1)
        top, bottom, left, right = ys.min(), ys.max() + 4, xs.min(), xs.max() + 4
        boxes.append([(left, top), (right, top), (right, bottom), (left, bottom)])
        scores.append(0.99 if is_right else 0.6 if upright else 0.98)
    return SimpleNamespace(boxes=np.array(boxes), txts=LINES, scores=scores)


@pytest.mark.parametrize("turns", range(4))
def test_a_page_is_read_from_its_first_line_however_it_lies(monkeypatch, turns):
    monkeypatch.setattr(pdf, "_recognizer", lambda: recognized)
    (block,) = pdf.read_image(np.rot90(drawn(), turns))
    assert block.text.splitlines() == list(LINES)


def test_columns_of_vertical_text_are_not_turned(monkeypatch):
    """Japanese from top to bottom; rotated, it would be read worse."""
    column = [[(5, 5), (15, 5), (15, 190), (5, 190)]]

    def recognize(pixels, use_cls):
        upright = pixels.shape[0] > pixels.shape[1]
        return SimpleNamespace(boxes=np.array(column), txts=("縦書き",), scores=[0.95 if upright else 0.55])

    monkeypatch.setattr(pdf, "_recognizer", lambda: recognize)
    (block,) = pdf.read_image(np.zeros((200, 30, 3), np.uint8))
    assert block.text == "縦書き"


def test_every_page_of_a_tiff_is_read_and_an_animation_is_one_picture(monkeypatch, tmp_path):
    image = pytest.importorskip("PIL.Image", reason="part of the extra ocr")
    shades = [image.new("RGB", (8, 8), (shade, 0, 0)) for shade in (10, 20, 30)]
    monkeypatch.setattr(pdf, "read_image", lambda pixels: (Block("text", f"shade {pixels[0, 0, 2]}"),))
    for name, labels in (("fax.tiff", ["page 1", "page 2", "page 3"]), ("moving.webp", ["picture"])):
        shades[0].save(tmp_path / name, save_all=True, append_images=shades[1:])
        pages = list(pdf.image_pages(tmp_path / name))
        assert [page.label for page in pages] == labels
        assert len({page.blocks[0].text for page in pages}) == len(labels)
    assert [page.number for page in pdf.image_pages(tmp_path / "fax.tiff", 3)] == [3]


def test_an_image_without_ocr_waits_for_it(monkeypatch, tmp_path):
    """As a problem of the page, not of the document: pages are read again once OCR is installed."""
    image = pytest.importorskip("PIL.Image", reason="part of the extra ocr")
    image.new("RGB", (8, 8)).save(tmp_path / "a.png")

    def missing():
        raise BadDocument(NO_OCR_HERE)

    monkeypatch.setattr(pdf, "_recognizer", missing)
    (page,) = pdf.image_pages(tmp_path / "a.png")
    assert page.problem == NO_OCR_HERE
