"""Files for clusters: they parse, and the command lines in them are ones that dragoman and torchrun understand."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from dragoman.cli.main import app

yaml = pytest.importorskip("yaml", reason="comes with transformers and ray")
DEPLOY = Path(__file__).parents[2] / "deploy"
FILES = sorted(DEPLOY.glob("*.yaml"))


def strings(node):
    if isinstance(node, dict):
        for value in node.values():
            yield from strings(value)
    elif isinstance(node, list):
        words = [word for word in node if isinstance(word, str)]
        yield " ".join(words) if len(words) == len(node) else ""
        for value in node:
            yield from strings(value)
    elif isinstance(node, str):
        yield node


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_command_lines_are_understood(path):
    from torch.distributed.run import get_args_parser

    text = path.read_text(encoding="utf-8")
    lines = " ".join(strings(yaml.safe_load(text))).replace("\\\n", " ")
    trains = re.findall(r"dragoman train (\S+) ([-\w .=]*?--resume)", lines)
    assert trains, "no run is started"
    for run_file, options in trains:
        assert run_file.endswith("run.toml")
        command = get_command(app).commands["train"]
        command.make_context("train", ["tiny", *shlex.split(options)], resilient_parsing=True)
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in shlex.split(options) if word.startswith("--")} <= known
    known = {option for action in get_args_parser()._actions for option in action.option_strings}
    for found in re.findall(r"torchrun (.*?) -m dragoman", lines, re.DOTALL):
        given = {word.partition("=")[0] for word in found.split() if word.startswith("--")}
        assert given <= known, "an option that torchrun does not know"


def test_no_key_and_no_open_port_is_in_the_image():
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    assert not re.search(r"^\s*EXPOSE|id_rsa|PRIVATE KEY", text, re.MULTILINE)
    assert "USER trainer" in text
    assert CliRunner().invoke(app, ["--version"]).exit_code == 0
