"""Starters that are not ours, on hosts whose own names mean loopback: the same trainer, and it learns what one process learns."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager

import pytest
from support import as_overrides, tiny_config

from dragoman.config import to_toml
from dragoman.runs import read_rows

ENVIRONMENT = {
    name: value for name, value in {**os.environ, "OMP_NUM_THREADS": "1"}.items() if name != "GLOO_SOCKET_IFNAME"
}
pytestmark = pytest.mark.usefixtures("loopback_names")


def test_torchrun_on_each_host(lab, prepared, split, learnt_the_same, tmp_path):
    config = tiny_config(prepared.folder, tmp_path / "run", *split)
    where = ["--nnodes=2", "--nproc-per-node=1", "--master-addr=a", "--master-port=29571"]
    trainer = ["-m", "dragoman", "train", "tiny", *as_overrides(config)]
    with ExitStack() as stack:
        started = []
        for number, host in enumerate(lab.hosts):
            words = [sys.executable, "-m", "torch.distributed.run", *where, f"--node-rank={number}", *trainer]
            process = subprocess.Popen(lab.command(host, *words), env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
            started.append(stack.enter_context(process))
            stack.callback(process.kill)
        for process in started:
            _, error = process.communicate(timeout=300)
            assert process.returncode == 0, error
    assert lab.left_behind() == []
    learnt_the_same(tmp_path / "run")


@contextmanager
def ray_on_each_host(lab, environment):
    """One core each, so that every host gets a rank. Both nodes want the same folder (a short
    path, for sockets), which they do not share on real machines."""
    place = f"{lab.address('a')}:6399"
    roles = {"a": ["--head", "--port=6399", "--include-dashboard=false"], "b": [f"--address={place}"]}
    apart = 'mount -t tmpfs none "$0"; exec "$@"'
    with tempfile.TemporaryDirectory(prefix="dm-ray-", dir="/tmp") as folder, ExitStack() as stack:
        for host, role in roles.items():
            ray = [sys.executable, "-m", "ray.scripts.scripts", "start", *role, "--num-cpus=1", "--block"]
            words = [*ray, f"--node-ip-address={lab.address(host)}", f"--temp-dir={folder}", "--disable-usage-stats"]
            words = words if host == "a" else ["unshare", "--mount", "sh", "-c", apart, folder, *words]
            node = subprocess.Popen(
                lab.command(host, *words), env=environment, cwd=folder, stdout=subprocess.PIPE, text=True
            )
            stack.callback(node.wait)
            stack.callback(node.terminate)
            assert any("Ray runtime started" in line for line in node.stdout), host
        yield place


@pytest.mark.cluster
@pytest.mark.usefixtures("alone_with_ray")
def test_ray_on_each_host(lab, prepared, split, learnt_the_same, tmp_path):
    pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    """Whose nodes stand in another folder than the command, and know nothing of its environment."""
    run_file = tmp_path / "one.toml"
    run_file.write_text(to_toml(tiny_config(prepared.folder, "run", *split)), encoding="utf-8")
    fault = ["--restarts", "1", "--simulate-fault", "kill:rank=1,step=2"]
    words = lab.dragoman("train", "one.toml", "--nproc", "2", "--engine", "ray", *fault)
    known = {**ENVIRONMENT, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}  # of this cluster alone
    with ray_on_each_host(lab, known) as place:
        known["RAY_ADDRESS"] = place
        result = subprocess.run(
            words, capture_output=True, text=True, env=known, cwd=tmp_path, timeout=300, check=False
        )
    assert result.returncode == 0, result.stderr
    assert lab.left_behind() == []
    [told] = (row for row in read_rows(tmp_path / "run" / "events.jsonl") if row["event"] == "fault")
    assert (told["kind"], told["rank"]) == ("killed", 1)
    learnt_the_same(tmp_path / "run", in_order=False)  # Ray chooses where rank 0 is
