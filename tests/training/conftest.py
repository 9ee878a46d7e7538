"""Data is checked in a thread beside the first steps, and no checkpoint is written before; here it is checked before them."""

import pytest

from dragoman.training.data_check import DataCheck


@pytest.fixture(autouse=True)
def checked_first(request, monkeypatch):
    """Which checkpoints there are must not depend on how busy the machine is. Damage is found at its own time."""
    usual = DataCheck.start

    def start(check):
        usual(check)
        check.thread.join()

    if "damaged" not in request.path.name:
        monkeypatch.setattr(DataCheck, "start", start)
