"""The bundled model and texts, and callbacks that do nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from quantize.job import forecast

ROOT = Path(__file__).resolve().parents[3]
SOURCE = ROOT / "assets/models/spark-f16.gguf"
CALIBRATION = ROOT / "assets/text/calibration.txt"
HELD_OUT = ROOT / "assets/text/heldout.txt"
LAYERS = 3  # of the bundled model, for tests that do not need all
TYPES = ("Q3_K", "IQ4_XS", "Q4_K", "Q5_K", "Q6_K", "Q8_0")


def ignore(progress):
    pass


def never():
    return False


@contextmanager
def measured_types(*names: str) -> Iterator[None]:
    """Restrict jobs to these types for tests that do not depend on their number: types take most of the time."""
    with mock.patch.object(forecast, "MEASURED", tuple(t for t in forecast.MEASURED if t.name in names)):
        yield
