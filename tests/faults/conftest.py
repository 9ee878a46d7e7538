"""The fault matrix: every test makes one kind of fault happen, checks what became of the run, and notes a row of the table.

DRAGOMAN_FAULTS names the file for the rows; `make test-faults` puts them into docs/reliability.md. Without it nothing is kept.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fault_runs import final_weights, train_command
from faults import Notes, Watched
from lab import Lab, missing
from support import as_overrides, tiny_config


@pytest.fixture(scope="session")
def note(tmp_path_factory):
    return Notes(Path(os.environ.get("DRAGOMAN_FAULTS", tmp_path_factory.mktemp("notes") / "faults.json")))


@pytest.fixture(scope="session")
def undisturbed(prepared, tmp_path_factory):
    """The weights at the end of a run that nothing happened to; made once for all that ask for the same."""
    known = {}

    def weights(*overrides, ranks=2):
        if (overrides, ranks) not in known:
            run = tmp_path_factory.mktemp("undisturbed") / "run"
            config = tiny_config(prepared.folder, run, *overrides)
            with Watched(train_command(config, ranks), run) as watched:
                assert watched.finish(1800) == 0, watched.said
            known[overrides, ranks] = final_weights(run)
        return known[overrides, ranks]

    return weights


@pytest.fixture
def train_watched(prepared, tmp_path):
    """`dragoman train` in a process of its own, in the run folder `run`."""

    def start(*overrides, ranks=2, options=(), data=prepared.folder, **environment):
        config = tiny_config(data, tmp_path / "run", *overrides)
        return Watched(train_command(config, ranks, *options), tmp_path / "run", **environment)

    return start


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """Hosts a and b train; c is where the launcher runs, and is left alone."""
    reason = missing()
    if reason:
        pytest.skip(f"hosts out of network namespaces: {reason}")
    with Lab(3, tmp_path_factory.mktemp("lab")) as made:
        yield made


@pytest.fixture
def launch_watched(lab, prepared, tmp_path):
    """`dragoman launch` over hosts a and b."""

    def start(*overrides, options=(), rsh=lab.rsh, **environment):
        config = tiny_config(prepared.folder, tmp_path / "run", *overrides)
        words = ["launch", "tiny", *as_overrides(config), "--hosts", "a:1,b:1", "--rsh", str(rsh), *options]
        return Watched(lab.dragoman(*words, host="c"), tmp_path / "run", **environment)

    return start
