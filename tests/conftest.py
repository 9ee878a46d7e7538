"""A tiny prepared corpus, shared by all tests of one worker."""

from __future__ import annotations

import pytest
import torch
from support import tiny_config

from dragoman.cli.stages import prepare
from dragoman.data.encode import PreparedData

torch.set_num_threads(1)  # workers share two cores


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    folder = tmp_path_factory.mktemp("prepared") / "data"
    return prepare(tiny_config(folder, folder.parent / "unused"))
