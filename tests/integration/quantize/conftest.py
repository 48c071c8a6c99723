"""One measurement of some layers of the bundled model, shared by all measurement tests."""

import os
import shutil
from pathlib import Path

import pytest
from filelock import FileLock

from quantize.measure.run import measure
from quantize.measurements import MeasureRequest
from tests.support.models.hollow_model import HollowModel
from tests.support.models.measured_model import CALIBRATION, LAYERS, TYPES, ignore, never
from tests.support.models.small_folder import NARROW, small_file


@pytest.fixture(scope="session")
def source(tmp_path_factory):
    """The model to measure, with a third of its feed-forward channels."""
    return small_file(tmp_path_factory.mktemp("source") / "source.gguf", LAYERS, NARROW)


@pytest.fixture(scope="session")
def request_for(source, tmp_path_factory):
    """A small measurement: a sixteenth of the text."""
    return MeasureRequest(
        source=source,
        calibration=CALIBRATION,
        cache_dir=tmp_path_factory.mktemp("measured"),
        qtypes=TYPES,
        threads=2,
        max_tokens=8192,
        probe_tokens=1024,
    )


@pytest.fixture(scope="session")
def measured(request_for, tmp_path_factory):
    """The measurement results; in a parallel run the first process measures and the others copy."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return measure(request_for, ignore, never)
    once = tmp_path_factory.getbasetemp().parent / "measured-once"
    with FileLock(once.with_suffix(".lock")):
        if once.exists():
            shutil.copytree(once, request_for.cache_dir, dirs_exist_ok=True)
            return measure(request_for, ignore, never)  # only reads the copied files
        found = measure(request_for, ignore, never)
        shutil.copytree(request_for.cache_dir, once.with_suffix(".partial"))
        once.with_suffix(".partial").rename(once)
    return found


@pytest.fixture
def shape(tmp_path: Path) -> HollowModel:
    """A model file without data."""
    return HollowModel(tmp_path / "shape.gguf")
