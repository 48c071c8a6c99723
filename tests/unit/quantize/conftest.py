"""A model file without data."""

from pathlib import Path

import pytest

from tests.support.models.hollow_model import HollowModel


@pytest.fixture
def shape(tmp_path: Path) -> HollowModel:
    return HollowModel(tmp_path / "shape.gguf")
