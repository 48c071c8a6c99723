"""Measures OCR of scanned pages: text drawn as PDF, rendered, and read in the reader's child process.

python tests/bench/documents_ocr.py --text FILE... [--pages 20] [--turned] [--scanner]

Each text gives one page of 50 lines in 11 point Helvetica without a text layer: the drawing is put into a PDF as
an image of 200 dots per inch. `--scanner` makes the images like those of a scanner: slightly rotated, on grey
paper with noise and a shadow at the edge, slightly out of focus, saved as JPEG. The share of right characters is 1
- edit distance / characters of the text, with spaces and without.
"""

import argparse
import io
import sys
import tempfile
import textwrap
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np
import pypdfium2 as pdfium
from PIL import Image, ImageFilter

from engine.documents.reader_process import Reader
from tests.support import documents_made as made

LINES, WIDTH, DPI = 50, 85, 200


def page_of(file):
    text = file.read_text(errors="replace").encode("cp1252", "ignore").decode("cp1252")
    lines = [line for part in text.split("\n\n") for line in textwrap.wrap(" ".join(part.split()), WIDTH)]
    return lines[:LINES]


def distance(a, b):
    """Levenshtein distance, one row at a time."""
    a, b = (np.frombuffer(text.encode("utf-32-le"), np.uint32) for text in (a, b))
    place = np.arange(len(b) + 1)
    row = place
    for number, letter in enumerate(a, 1):
        changed = np.minimum(row[1:] + 1, row[:-1] + (b != letter))
        row = np.minimum.accumulate(np.concatenate(([number], changed)) - place) + place
    return int(row[-1])


def like_a_scan(picture, number):
    """The page askew by up to 1.5 degrees, grey, noisy, shaded at one edge, out of focus, and stored as JPEG."""
    random = np.random.default_rng(number)
    askew = picture.rotate(random.uniform(-1.5, 1.5), expand=False, fillcolor="white")
    values = np.asarray(askew.filter(ImageFilter.GaussianBlur(0.7)), np.float32)
    shade = np.linspace(0.75, 1.0, values.shape[1])[None, :, None]
    values = (40 + values * 0.75) * shade + random.normal(0, 12, values.shape[:2])[:, :, None]
    file = io.BytesIO()
    Image.fromarray(values.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=60)
    return Image.open(file).convert("RGB")


def scanned(drawn, place, *, turned, scanner):
    """The pages of a PDF as a PDF of pictures."""
    pictures = []
    document = pdfium.PdfDocument(drawn)
    for number, page in enumerate(document):
        picture = page.render(scale=DPI / 72).to_pil().convert("RGB")
        picture = like_a_scan(picture, number) if scanner else picture
        pictures.append(picture.rotate(180) if turned else picture)
    document.close()
    file = place / "scanned.pdf"
    pictures[0].save(file, save_all=True, append_images=pictures[1:], resolution=DPI)
    return file


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--text", nargs="+", required=True, type=Path)
    parser.add_argument("--pages", type=int, default=20)
    parser.add_argument("--turned", action="store_true", help="the pages lie upside down")
    parser.add_argument("--scanner", action="store_true", help="noise, shadow, blur, JPEG, askew by 1.5 degrees")
    options = parser.parse_args()
    wanted = [page_of(file) for file in options.text[: options.pages]]
    totals = np.zeros(4)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        file = scanned(made.pdf(place / "drawn.pdf", wanted), place, turned=options.turned, scanner=options.scanner)
        reader = Reader(ocr=True)
        began = time.monotonic()
        read_pages = 0
        for answer in reader.read(file, "pdf"):
            if answer.problem:
                print(f"problem: {answer.problem}", flush=True)
            read_pages += len(answer.pages)
            for page in answer.pages:
                text = " ".join(" ".join(chunk.text for chunk in page.chunks).split())
                want = " ".join(" ".join(wanted[page.number - 1]).split())
                bare, read = want.replace(" ", ""), text.replace(" ", "")
                costs = distance(want, text), len(want), distance(bare, read), len(bare)
                totals += costs
                shares = f"{1 - costs[0] / costs[1]:.4f} {1 - costs[2] / costs[3]:.4f}"
                print(f"page {page.number}: {shares} {page.problem}", flush=True)
        reader.close()
    if read_pages != len(wanted):
        raise SystemExit(f"{read_pages} of {len(wanted)} pages were answered")
    print(f"{len(wanted)} pages in {time.monotonic() - began:.0f} s; right characters")
    print(f"with spaces {1 - totals[0] / totals[1]:.4f}, without {1 - totals[2] / totals[3]:.4f}")


if __name__ == "__main__":
    main()
