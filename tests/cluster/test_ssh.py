"""The launcher over real ssh, with a key of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from support import wait_until

from dragoman import runs

SERVER = Path(__file__).parent / "ssh_server.py"
TALKATIVE = {**os.environ, "TORCH_CPP_LOG_LEVEL": "INFO"}  # else rank 0 alone has something to say


@pytest.fixture
def ssh(lab, tmp_path):
    """The ssh command line that reaches both hosts of the lab."""
    pytest.importorskip("asyncssh", reason="needs asyncssh, to be a server")
    if not shutil.which("ssh"):
        pytest.skip("needs ssh")
    for name in ("server", "client"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)], check=True)
    with ExitStack() as stack:
        for host in lab.hosts:
            command = [sys.executable, str(SERVER), "2222", str(tmp_path / "server"), str(tmp_path / "client.pub")]
            server = subprocess.Popen(lab.command(host, *command), env=TALKATIVE, stdout=subprocess.PIPE, text=True)
            stack.callback(server.wait)
            stack.callback(server.kill)
            assert server.stdout.readline() == "listening\n"
        options = [
            "BatchMode=yes",
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=/dev/null",
            "LogLevel=ERROR",
            "ConnectTimeout=60",
        ]
        yield " ".join(
            [
                "ssh",
                "-F",
                "/dev/null",
                "-p",
                "2222",
                "-i",
                str(tmp_path / "client"),
                *(f"-o {each}" for each in options),
            ]
        )


def on_hosts(lab):
    return {pid for host in lab.hosts for pid in lab.processes(host)}


def test_two_hosts_over_ssh_and_what_ssh_says_about_a_wrong_one(start, ssh, tmp_path):
    servers = on_hosts(start.lab)
    words = start.words("train.max_steps=3", options=("--rsh", ssh))
    result = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    assert [entry["host"] for entry in runs.read_json(tmp_path / "run" / "environment.json")["hosts"]] == ["a", "b"]
    assert "[a/0] training 3 of 3" in result.stdout
    assert set(re.findall(r"^\[\w+/\d+\]", result.stdout, re.MULTILINE)) == {"[a/0]", "[b/1]"}
    words = start.words(hosts="a:1,nosuch:1", options=("--rsh", ssh), run="other")
    result = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert result.returncode == 2
    (line,) = result.stderr.strip().splitlines()
    assert "host nosuch: cannot be reached (ssh: Could not resolve hostname nosuch" in line
    wait_until(lambda: on_hosts(start.lab) == servers)
