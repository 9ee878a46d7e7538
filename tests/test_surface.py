"""The names we promise, and rules that would decay in prose."""

import importlib
import subprocess
import sys
import types
from pathlib import Path

import pytest

import dragoman
from dragoman.config import load_config, to_toml
from dragoman.errors import DragomanError, MissingExtra, require_extra

ROOT = Path(__file__).parent.parent
PROMISED = {"Translator", "diagnose", "errors", "evaluate", "export", "load_config", "load_run", "prepare", "train"}


def test_promised_names():
    assert set(dragoman.__all__) == PROMISED
    for name in PROMISED:
        assert getattr(dragoman, name) is not None


def test_functions_are_not_hidden_by_rooms_of_the_same_name():
    for room in ("training.trainer", "evaluation.evaluate", "exporting", "translate", "report"):
        importlib.import_module(f"dragoman.{room}")
    for name in ("prepare", "train", "evaluate", "export", "diagnose", "load_run"):
        assert not isinstance(getattr(dragoman, name), types.ModuleType)


def test_import_costs_nothing():
    code = "import sys, dragoman; assert not {'torch', 'pydantic', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = dragoman.nonsense


@pytest.mark.parametrize("extra", ["serve", "export", "ray", "comet"])
def test_a_missing_extra_names_its_pip_line(extra):
    with pytest.raises(MissingExtra, match=rf"pip install '\.\[{extra}\]'"):
        require_extra(f"no_such_module_{extra}", extra, "this")


def test_errors_of_users_end_with_code_2():
    assert DragomanError.exit_code == 2


def test_the_printed_manual_is_up_to_date():
    """docs/config.toml is made by `make docs`."""
    assert to_toml(load_config(), explained=True) in (ROOT / "docs" / "config.toml").read_text(encoding="utf-8")
