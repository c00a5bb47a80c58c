"""A tiny model that runs, made once for all tests of this folder."""

from __future__ import annotations

import pytest

from pipeline import Presets
from tests.pipeline.running import write_presets, write_running_model


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """A folder with preset files and the model they name; leave it as it is."""
    folder = tmp_path_factory.mktemp("tiny")
    write_running_model(folder / "model")
    write_presets(folder)
    return folder


@pytest.fixture(scope="session")
def tiny(tiny_folder) -> Presets:
    """The presets of `tiny_folder`, the bundled ones among them."""
    return write_presets(tiny_folder)
