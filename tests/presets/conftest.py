"""The model folder and its recipe, for tests of the bundled preset."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

MODEL = Path(__file__).resolve().parents[2] / "presets" / "firefly"
sys.path.insert(0, str(MODEL))
torch.set_num_threads(2)


@pytest.fixture(scope="session")
def model_folder() -> Path:
    """The bundled model."""
    return MODEL
