"""One measurement of the bundled model, shared by all tests of measuring."""

from pathlib import Path

import pytest
from hollow_model import HollowModel
from measured_model import CALIBRATION, SOURCE, TYPES, ignore, never

from quantize.evidence import MeasureRequest
from quantize.measure.run import measure


@pytest.fixture(scope="session")
def request_for(tmp_path_factory):
    """A small measurement: an eighth of the text, so that the whole takes half a minute."""
    return MeasureRequest(
        source=SOURCE,
        calibration=CALIBRATION,
        cache_dir=tmp_path_factory.mktemp("measured"),
        qtypes=TYPES,
        threads=2,
        max_tokens=16_384,
        probe_tokens=1024,
    )


@pytest.fixture(scope="session")
def measured(request_for):
    return measure(request_for, ignore, never)


@pytest.fixture
def shape(tmp_path: Path) -> HollowModel:
    """A model file without data."""
    return HollowModel(tmp_path / "shape.gguf")
