"""Files for clusters: they parse, and the command lines in them are ones that dragoman and torchrun understand."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from typer.main import get_command

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


def documents(path):
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def pods(node):
    """Descriptions of pods, wherever they stand."""
    for value in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        if isinstance(value, dict) and "containers" in value:
            yield value
        yield from pods(value)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_command_lines_are_understood(path):
    from torch.distributed.run import get_args_parser

    lines = " ".join(strings(documents(path))).replace("\\\n", " ")
    trains = re.findall(r"dragoman train (\S+) ([-\w .=]*?--resume)", lines)
    assert trains, "no run is started"
    for run_file, options in trains:
        assert run_file.endswith("run.toml")
        command = get_command(app).commands["train"]
        command.make_context("train", ["tiny", *shlex.split(options)], resilient_parsing=True)
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in shlex.split(options) if word.startswith("--")} <= known
    known = {option for action in get_args_parser()._actions for option in action.option_strings}
    with_options = re.findall(r"torchrun (--.*?) -m dragoman", lines, re.DOTALL)
    assert bool(with_options) == (path.name in ("jobset.yaml", "skypilot.yaml")), (
        "Trainer and Ray say the rest by themselves"
    )
    for found in with_options:
        given = {word.partition("=")[0] for word in found.split() if word.startswith("--")}
        assert given <= known, "an option that torchrun does not know"


@pytest.mark.parametrize("name", ["kubeflow-trainjob.yaml", "jobset.yaml"])
def test_pods_can_share_memory_and_have_time_for_a_last_checkpoint(name):
    (pod,) = pods(documents(DEPLOY / name))
    assert pod["terminationGracePeriodSeconds"] >= 120
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    (container,) = pod["containers"]
    (patience,) = (each["value"] for each in container["env"] if each["name"] == "TORCH_ELASTIC_SHUTDOWN_TIMEOUT")
    assert 120 <= int(patience) < pod["terminationGracePeriodSeconds"], "torchrun kills after that, the cluster later"
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    assert mounts["/dev/shm"]["emptyDir"]["medium"] == "Memory"
    assert "persistentVolumeClaim" in mounts["/work"]


def test_the_job_of_kubeflow_names_the_runtime_beside_it():
    runtime, job = documents(DEPLOY / "kubeflow-trainjob.yaml")
    wanted = job["spec"]["runtimeRef"]
    assert (wanted["kind"], wanted["name"]) == (runtime["kind"], runtime["metadata"]["name"])
    (node,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert node["name"] == "node", "the name that Trainer gives the address of the first node for"
    trainer = job["spec"]["trainer"]
    assert trainer["numProcPerNode"] == trainer["resourcesPerNode"]["limits"]["nvidia.com/gpu"]


def test_a_run_on_kuberay_survives_the_loss_of_a_node_and_its_folders_are_seen_by_all():
    path = DEPLOY / "ray-job.yaml"
    (job,) = documents(path)
    words = shlex.split(job["spec"]["entrypoint"])
    assert int(words[words.index("--restarts") + 1]) > 0
    assert "--resume" in words
    assert job["spec"]["backoffLimit"] > 0, "the head node is lost with the whole cluster of Ray"
    assert "ReadWriteMany" in path.read_text(encoding="utf-8")
    found = list(pods(job))
    assert len(found) == 2
    for pod in found:
        (container,) = pod["containers"]
        claims = {volume["name"]: volume["persistentVolumeClaim"]["claimName"] for volume in pod["volumes"]}
        assert {mount["mountPath"]: claims[mount["name"]] for mount in container["volumeMounts"]} == {
            "/work": "dragoman-work"
        }


def test_a_cluster_of_ray_asks_for_a_token():
    """Otherwise whoever reaches it can run code in it. KubeRay wants to know the version for that."""
    (job,) = documents(DEPLOY / "ray-job.yaml")
    spec = job["spec"]["rayClusterSpec"]
    assert spec["authOptions"] == {"mode": "token"}
    assert f"ray=={spec['rayVersion']}\n" in (DEPLOY.parent / "constraints.txt").read_text(encoding="utf-8")


def test_the_image_has_what_kuberay_needs():
    """It asks pods how they are with wget, and hands jobs to the part of Ray that is not in the extra."""
    image = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    assert re.search(r"apt-get install .*\bwget\b", image)
    built = (DEPLOY / "ray-job.yaml").read_text(encoding="utf-8")
    given = dict(re.findall(r"--build-arg (\w+)=(\S+)", built))
    assert given == {"EXTRAS": "[ray]", "MORE": "ray[default,train]"}
    assert all(f"ARG {name}=" in image for name in given)
    assert '".${EXTRAS}" ${MORE}' in image


def test_a_preempted_job_of_skypilot_goes_on():
    path = DEPLOY / "skypilot.yaml"
    (job,) = documents(path)
    assert "sky jobs launch" in path.read_text(encoding="utf-8"), "nobody starts a job of `sky launch` again"
    assert job["resources"]["job_recovery"]["max_restarts_on_errors"] > 0
    assert job["run"].startswith("cd /work\n"), "what is written beside the mounted folder is lost"
    assert "/work" in job["file_mounts"]


def test_skypilot_installs_for_a_python_that_dragoman_runs_on_and_starts_that():
    (job,) = documents(DEPLOY / "skypilot.yaml")
    (folder, version) = re.search(r"uv venv --seed --python 3\.(\d+) (\S+)", job["setup"]).group(2, 1)
    wanted = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]["requires-python"]
    assert int(version) >= int(wanted.removeprefix(">=3."))
    assert f"{folder}/bin/pip install -c constraints.txt ." in job["setup"]
    assert f"{folder}/bin/torchrun" in job["run"]


def test_no_key_and_no_open_port_is_in_the_image():
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    assert not re.search(r"^\s*EXPOSE|id_rsa|PRIVATE KEY", text, re.MULTILINE)
    assert "USER trainer" in text
