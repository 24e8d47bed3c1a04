"""What a run records of the user's code and settings, and a run that is made again from it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from support.stubs import StubHost

from hpc_amp.jobs import git
from hpc_amp.jobs.git import read_code_state


def ran(*words: str, cwd: Path) -> str:
    done = subprocess.run(words, cwd=cwd, text=True, capture_output=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(host: StubHost, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's code, with one commit."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    (host.work / "train.py").write_text("print('first')\n")
    (host.work / "binary").write_bytes(bytes(range(256)))
    ran("git", "init", "-q", "-b", "main", cwd=host.work)
    commit(host.work)
    return host.work


def commit(folder: Path) -> str:
    ran("git", "add", "--all", cwd=folder)
    who = ("-c", "user.name=me", "-c", "user.email=me@here")
    ran("git", *who, "commit", "-q", "-m", "a commit", cwd=folder)
    return ran("git", "rev-parse", "HEAD", cwd=folder)


PROGRAM: dict[str, Any] = {"run": ["python", "train.py"], "code": "."}


def recorded(host: StubHost, config: dict[str, Any] = PROGRAM) -> tuple[dict[str, Any], Path]:
    """`git.json` of a run, and the run directory."""
    run_dir = host.create({"site": "local", **config})
    path = run_dir / "git.json"
    return json.loads(path.read_text()) if path.exists() else {}, run_dir


# ---- the state of the code -----------------------------------------------------------------------


def test_commit_branch_and_changes_are_recorded(host: StubHost, repository: Path) -> None:
    (repository / "train.py").write_text("print('second')\n")
    (repository / "binary").write_bytes(bytes(range(255, -1, -1)))
    (repository / "new file.py").write_text("")
    (repository / "folder").mkdir()
    (repository / "folder" / "other.py").write_text("")

    facts, run_dir = recorded(host)

    assert facts == {
        "root": str(repository),
        "commit": ran("git", "rev-parse", "HEAD", cwd=repository),
        "branch": "main",
        "dirty": True,
        "untracked": ["folder/", "new file.py"],  # and not the folder of the runs
        "notes": [],
    }
    ran("git", "checkout", "-q", ".", cwd=repository)
    ran("git", "apply", str(run_dir / "git.patch"), cwd=repository)
    assert (repository / "train.py").read_text() == "print('second')\n"
    assert (repository / "binary").read_bytes() == bytes(range(255, -1, -1))
    shown = host.hpc_amp("status", str(run_dir)).stdout
    assert f"commit {facts['commit'][:12]} (main), with changes, 2 untracked" in shown


def test_code_without_changes_has_no_patch(host: StubHost, repository: Path) -> None:
    ran("git", "checkout", "-q", "--detach", cwd=repository)
    facts, run_dir = recorded(host, {"run": ["python", "train.py"]})
    assert (facts["branch"], facts["dirty"], facts["untracked"]) == (None, False, [])
    assert not (run_dir / "git.patch").exists()


def test_the_repository_is_that_of_the_program(host: StubHost, repository: Path) -> None:
    other = host.folder / "other"
    other.mkdir()
    run_dir = host.create({"run": ["python", str(repository / "train.py")]}, cwd=other)
    assert json.loads((run_dir / "git.json").read_text())["root"] == str(repository)


def test_without_a_repository_nothing_is_recorded(host: StubHost) -> None:
    (host.work / "train.py").write_text("")
    facts, run_dir = recorded(host)
    assert facts == {} and read_code_state(run_dir) is None
    shown = host.hpc_amp("status", str(run_dir))
    assert "code" not in shown.stdout and shown.stderr == ""


def test_without_git_nothing_is_recorded(
    host: StubHost, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, *rest, **more: None)
    assert recorded(host)[0] == {}


@pytest.mark.parametrize("state", ["damaged", "empty"])
def test_a_repository_that_git_cannot_read(host: StubHost, repository: Path, state: str) -> None:
    shutil.rmtree(repository / ".git")
    if state == "damaged":
        (repository / ".git").write_text("gitdir: /nowhere\n")
        assert recorded(host)[0] == {}
        return
    ran("git", "init", "-q", "-b", "new", cwd=repository)
    facts, _ = recorded(host)
    assert (facts["commit"], facts["branch"]) == (None, "new")


def test_a_large_change_is_cut_off(
    host: StubHost, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git, "_PATCH_LIMIT", 2**20)
    (repository / "train.py").write_text("".join(f"line {n}\n" for n in range(200_000)))
    for number in range(300):
        (repository / f"new-{number}").write_text("")

    facts, run_dir = recorded(host)

    patch = (run_dir / "git.patch").read_bytes()
    assert 2**19 < len(patch) <= 2**20 and patch.endswith(b"\n")
    assert facts["notes"] == [
        "only the first 200 untracked names are listed",
        "the changes have more than 1 MiB: git.patch has their beginning",
    ]


@pytest.mark.parametrize("slow", ["status", "diff"])
def test_git_that_does_not_answer_is_not_waited_for(
    host: StubHost, repository: Path, monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    """A huge repository, or one on a file server that is away. A git that has started other
    programs, which keep its output open, is ended with them."""
    (repository / "train.py").write_text("changed")
    real = shutil.which("git")
    fake = host.folder / "git"
    wait = f'case " $* " in *" {slow} "*) sleep 1000 & echo $! >>{host.folder}/pids; wait ;; esac'
    fake.write_text(f'#!/bin/bash\n{wait}\nexec {real} "$@"\n')
    fake.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name, *rest, **more: str(fake))

    facts, run_dir = recorded(host)

    assert facts["commit"] == ran(str(real), "rev-parse", "HEAD", cwd=repository)
    assert facts["dirty"] is (None if slow == "status" else True)
    assert facts["notes"] == ["git took longer than 2 s, so not everything is recorded"]
    assert not (run_dir / "git.patch").exists()
    for pid in (host.folder / "pids").read_text().split():
        assert (
            not Path(f"/proc/{pid}/stat").exists() or " Z " in Path(f"/proc/{pid}/stat").read_text()
        ), "it still runs"


def test_nothing_that_a_repository_names_is_executed(host: StubHost, repository: Path) -> None:
    """git itself would run each of these programs."""
    trap = host.folder / "trap.sh"
    trap.write_text(f'#!/bin/bash\necho "$0 $*" >>{host.folder}/trapped\ncat\n')
    trap.chmod(0o755)
    (repository / ".gitattributes").write_text("*.py filter=bad diff=bad\n*.md filter=worse\n")
    (repository / "a.md").write_text("")
    commit(repository)
    hooks = repository / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("post-index-change", "fsmonitor-watchman", "pre-auto-gc"):
        (hooks / name).unlink(missing_ok=True)
        (hooks / name).symlink_to(trap)
    (repository / ".git" / "more").write_text(f'[filter "worse"]\n\tprocess = {trap}\n')
    for key, value in {
        "core.fsmonitor": str(trap),
        "core.pager": str(trap),
        "core.sshCommand": str(trap),
        "core.askPass": str(trap),
        "diff.external": str(trap),
        "diff.bad.command": str(trap),
        "diff.bad.textconv": str(trap),
        "filter.bad.clean": str(trap),
        "filter.bad.smudge": str(trap),
        "filter.bad.required": "true",
        "include.path": "more",
        "core.hooksPath": str(hooks),
    }.items():
        ran("git", "config", key, value, cwd=repository)
    (repository / "train.py").write_text("print('another')\n")
    (repository / "a.md").write_text("x")

    facts, run_dir = recorded(host)

    assert facts["dirty"] is True, facts
    assert "another" in (run_dir / "git.patch").read_text()
    assert not (host.folder / "trapped").exists()
    # The trap works: git as users call it falls into it.
    subprocess.run(["git", "diff"], cwd=repository, capture_output=True, check=False)
    assert (host.folder / "trapped").exists()


def test_a_configuration_in_another_folder_is_found(host: StubHost, repository: Path) -> None:
    (repository / ".gitattributes").write_text("*.py filter=bad\n")
    commit(repository)
    ran("git", "config", "filter.bad.clean", f"touch {host.folder}/trapped; cat", cwd=repository)
    real = (repository / ".git").rename(host.folder / "real")
    (repository / ".git").mkdir()
    for name in ("HEAD", "index"):
        shutil.copy(real / name, repository / ".git" / name)
    (repository / ".git" / "commondir").write_text(f"{real}\n")
    (repository / "train.py").write_text("print('another')\n")

    facts, run_dir = recorded(host)

    assert facts["dirty"] and "another" in (run_dir / "git.patch").read_text()
    assert not (host.folder / "trapped").exists()
    ran("git", "diff", cwd=repository)
    assert (host.folder / "trapped").exists(), "git itself would have run it"


def test_a_git_that_cannot_be_started_is_no_error(
    host: StubHost, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, *rest, **more: "/dev/null")
    assert recorded(host)[0] == {}


def test_a_filter_that_cannot_be_switched_off_is_not_run(host: StubHost, repository: Path) -> None:
    (repository / ".gitattributes").write_text("*.py filter=a=b\n")
    ran("git", "config", "filter.a=b.clean", f"touch {host.folder}/trapped", cwd=repository)
    (repository / "train.py").write_text("print('another')\n")
    facts, _ = recorded(host)
    assert facts["dirty"] is None and facts["commit"]
    assert not (host.folder / "trapped").exists()


def test_a_variable_of_git_does_not_lead_elsewhere(
    host: StubHost, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = host.folder / "other"
    other.mkdir()
    ran("git", "init", "-q", "-b", "wrong", cwd=other)
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    assert recorded(host)[0]["branch"] == "main"


def test_runs_of_a_campaign_share_the_state_of_the_code(host: StubHost, repository: Path) -> None:
    (repository / "train.py").write_text("import sys; print(sys.argv)\n")
    config = {"name": "many", "site": "local", **PROGRAM, "job": {"gpus_per_node": 0}}
    host.write_job({**config, "run": ["python", "train.py", "{x}"], "values": {"x": 0}})
    made = host.hpc_amp("sweep", "job.yaml", "values.x=1,2", "--yes", "launch.preflight=false")
    assert made.returncode == 0, made.stdout + made.stderr

    (folder,) = (repository / "sweeps" / "many").glob("[0-9]*")
    for point in ("0000", "0001"):
        run_dir = folder / "points" / point
        assert os.readlink(run_dir / "git.json") == "../../git.json"
        state = read_code_state(run_dir)
        assert state is not None and state.dirty and state.changes
        origins = json.loads((run_dir / "job.json").read_text())["origins"]
        assert origins["values.x"].startswith("override 'values.x="), origins
        assert origins["name"].endswith("job.yaml:4"), origins


# ---- the settings --------------------------------------------------------------------------------


def test_the_origin_of_every_value_is_recorded(host: StubHost) -> None:
    (host.work / "here.yaml").write_text(
        "name: here\nscheduler: local\nenv: {A: '1'}\ndefaults:\n  job: {walltime: 5m}\n"
    )
    (host.work / "job.yaml").write_text(
        "name: test\nsite: ./here.yaml\nrun: ['true']\njob:\n  gpus_per_node: 0\n"
        "container:\n  env: {B: '2'}\n"
    )
    result = host.hpc_amp("submit", "job.yaml", "--json", "-N", "2", "restarts.on_failure=3")
    assert result.returncode == 0, result.stderr
    run_dir = Path(json.loads(result.stdout)["run_dir"])

    resolved = json.loads((run_dir / "job.json").read_text())

    assert resolved["origins"] == {
        "container.env.A": "site here",
        "container.env.B": "job.yaml:7",
        "job.gpus_per_node": "job.yaml:5",
        "job.nodes": "override 'job.nodes=2'",
        "job.walltime": "here.yaml:5",
        "name": "job.yaml:1",
        "restarts.on_failure": "override 'restarts.on_failure=3'",
        "run": "job.yaml:3",
        "site": "job.yaml:2",
    }
    assert resolved["overrides"] == ["job.nodes=2", "restarts.on_failure=3"]


# ---- a run again ---------------------------------------------------------------------------------

CONFIG = "from hpc_amp.tasks.classification.config import ClassificationConfig as MineConfig\n"
TASK = """\
from hpc_amp.tasks.classification.task import Classification

FACTOR = 1.0


class Mine(Classification):
    name = "mine"

    def losses(self, phase, batch, networks):
        for losses in super().losses(phase, batch, networks):
            yield {name: FACTOR * loss for name, loss in losses.items()}
"""


def test_a_training_is_repeated_bit_by_bit(host: StubHost, warm_python: Path) -> None:
    """With a task of the user's own that has changed since, as git shows, with data at a relative
    path, without the job file, and from another folder."""
    project, elsewhere = host.work / "project", host.folder / "elsewhere"
    (project / "code" / "mine").mkdir(parents=True)
    elsewhere.mkdir()
    task = project / "code" / "mine" / "task.py"
    task.write_text(TASK)
    task.with_name("config.py").write_text(CONFIG)
    for split in ("train", "test"):
        for label, name in enumerate(("cat", "dog")):
            folder = project / "pictures" / split / name
            folder.mkdir(parents=True)
            for number in range(8):
                colour = (29 * number, 100, 200 * label)
                Image.new("RGB", (12, 10), colour).save(folder / f"{number}.png")
    ran("git", "init", "-q", cwd=project)
    first_commit = commit(project)
    task.write_text(TASK.replace("1.0", "2.0"))
    config = {
        "name": "repeated",
        "site": "local",
        "code": "code",
        "job": {"gpus_per_node": 0},
        "container": {"python": str(warm_python)},
        "train": {
            "task": "mine.task:Mine",
            "device": "cpu",
            "batch_size": 4,
            "epochs": 2,
            "model": {"name": "resnet8", "width": 8},
            "data": {"name": "imagefolder", "root": "pictures"},
        },
    }
    host.write_job(config, "project/job.yaml")
    first = run_of(host, "run", "job.yaml", "train.seed=7", cwd=project)
    shutil.rmtree(project / "code")
    (project / "job.yaml").unlink()
    commit(project)

    second = run_of(host, "run", str(first), cwd=elsewhere)
    assert results(second) == results(first)
    # A run that was repeated is repeated in the same way, and a copy of it too.
    copy = shutil.copytree(second, elsewhere / "copy", symlinks=True)
    shutil.rmtree(first)
    third = run_of(host, "run", str(copy), cwd=elsewhere)
    assert results(third) == results(second)
    state = read_code_state(third)
    assert state is not None and (state.commit, state.dirty) == (first_commit, True)
    assert "+FACTOR = 2.0" in (third / "git.patch").read_text()

    fourth = run_of(host, "run", str(second), "train.seed=8", cwd=elsewhere)
    assert results(fourth) != results(second)
    assert list(elsewhere.iterdir()) == [copy]


def run_of(host: StubHost, *words: str, cwd: Path) -> Path:
    result = host.hpc_amp(*words, cwd=cwd)
    assert result.returncode == 0, result.stdout + result.stderr
    (line,) = (line for line in result.stdout.splitlines() if line.startswith("run directory "))
    return Path(line.removeprefix("run directory "))


def results(run_dir: Path) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """The hashes of all checkpoints by the file, and the metrics without times."""
    hashes = {
        str(path.relative_to(run_dir)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (run_dir / "checkpoints").rglob("*.pt")
    }
    assert hashes
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    timed = ("time", "second", "memory", "wait")
    metrics = [
        {
            name: value
            for name, value in json.loads(line).items()
            if not any(t in name for t in timed)
        }
        for line in lines
    ]
    assert any("loss" in name for line in metrics for name in line)
    return hashes, metrics


def test_what_a_rerun_cannot_keep_is_said(host: StubHost, repository: Path) -> None:
    site = host.folder / "here.yaml"
    site.write_text("name: here\nscheduler: local\nenv: {A: secret}\n")
    config = {"name": "test", "site": str(site), "run": ["python", "train.py"]}
    host.write_job({**config, "job": {"gpus_per_node": 0}})
    result = host.hpc_amp("submit", "job.yaml", "--follow", cwd=repository)
    assert result.returncode == 0, result.stdout + result.stderr
    (run_dir,) = (repository / "runs" / "test").glob("2*")

    (said,) = host.hpc_amp("submit", str(run_dir)).stderr.splitlines()
    assert said.startswith(f"note: {run_dir} has no copy of its program, because the key code ")
    assert "is used as it is now (it was commit " in said

    resolved = json.loads((run_dir / "job.json").read_text())
    (run_dir / "job.json").write_text(json.dumps({**resolved, "hpc_amp": "0.0.1"}))
    site.write_text(
        "name: here\nscheduler: local\nenv: {A: other}\n"
        "defaults: {restarts: 2, job: {walltime: 5m, nodes: 2}}\n"
    )
    said = host.hpc_amp("submit", str(run_dir), "-N", "1").stderr.splitlines()[0]
    assert said.startswith(f"note: not as in {run_dir}: hpc_amp 0.0.1 -> ")
    assert "job.walltime" in said and "restarts." in said and "job.nodes" not in said
    assert "container.env.A changed" in said and "secret" not in said


def test_a_rerun_of_a_copy_of_its_code_says_nothing(host: StubHost, repository: Path) -> None:
    host.write_job({"name": "test", "site": "local", **PROGRAM, "job": {"gpus_per_node": 0}})
    run_dir = run_of(host, "run", "job.yaml", cwd=repository)
    assert host.hpc_amp("submit", str(run_dir)).stderr == ""


def test_code_that_differs_is_compared(host: StubHost, repository: Path) -> None:
    config = {"name": "test", "site": "local", **PROGRAM, "job": {"gpus_per_node": 0}}
    host.write_job(config)
    first = run_of(host, "run", "job.yaml", cwd=repository)
    (repository / "train.py").write_text("print('second')\n")
    second = run_of(host, "run", "job.yaml", cwd=repository)

    found = json.loads(host.hpc_amp("compare", str(first), str(second), "--json").stdout)

    one, other = read_code_state(first), read_code_state(second)
    assert one is not None and other is not None
    assert found["code"]["changes"] == ["none", f"git.patch {other.changes}"]
    assert "code/train.py" in found["code"] and "commit" not in found["code"]
    commit(repository)
    third = run_of(host, "run", "job.yaml", cwd=repository)
    text = host.hpc_amp("compare", str(second), str(third)).stdout
    assert "code that differs:" in text and "code/train.py" not in text
    assert "commit" in text


# ---- a script that its user submits --------------------------------------------------------------


def test_a_rendered_script_has_its_run_directory(host: StubHost) -> None:
    job = {"name": "test", "site": "slurm", "run": ["true"], "job": {"gpus_per_node": 0}}
    host.write_job(job)
    plain = host.hpc_amp("render", "job.yaml")
    assert "to submit this script yourself, add --create" in plain.stderr
    assert not (host.work / "runs").exists()

    made = host.hpc_amp("render", "job.yaml", "--create", "launch.preflight=false")

    assert made.returncode == 0, made.stderr
    (run_dir,) = (host.work / "runs" / "test").glob("2*")
    assert made.stdout == (run_dir / "launch.sh").read_text()
    assert made.stderr == f"run directory {run_dir}\n"
    (entry,) = json.loads(host.hpc_amp("status", "test", "--json").stdout)
    assert entry["state"] == "unknown" and entry["reason"].endswith("its script has not started")
    assert host.run(run_dir).status == 0
    (entry,) = json.loads(host.hpc_amp("status", "test", "--json").stdout)
    assert (entry["state"], entry["job_id"]) == ("finished", "42")


def test_a_run_that_was_not_started_is_removed(host: StubHost) -> None:
    job = {"name": "test", "site": "slurm", "run": ["true"], "job": {"gpus_per_node": 0}}
    host.write_job(job)
    assert host.hpc_amp("render", "job.yaml", "--create").returncode == 0
    for words in (["cancel"], ["cancel", "--save"], ["resume"]):
        refused = host.hpc_amp(*words, "test")
        assert refused.returncode == 2 and refused.stderr.count("\n") == 1
        assert "its script has not started; " in refused.stderr
    removed = host.hpc_amp("rm", "test", "--yes")
    assert removed.returncode == 0, removed.stderr
    assert not (host.work / "runs" / "test").exists()
