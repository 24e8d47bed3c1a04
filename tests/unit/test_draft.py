"""Programs in the place of job files, and job files that are drafted from scripts."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from support.stubs import StubHost

from hpc_amp.config.load import JobText, load_job, read_job
from hpc_amp.config.tree import Items, MappingNode, Node, Scalar
from hpc_amp.config.write import job_text, tree_text
from hpc_amp.draft.program import varied
from hpc_amp.draft.script import draft_from_script
from hpc_amp.errors import ConfigError, UsageError
from hpc_amp.schedulers import grammars
from hpc_amp.schedulers.grammar import Grammar

CONFIGS = Path(__file__).parents[2] / "configs"
PROGRAM = (
    "import json, os, sys\nprint('said', json.dumps([os.environ['WORLD_SIZE'], *sys.argv[1:]]))\n"
)


def test_a_program_runs_without_a_job_file(host: StubHost) -> None:
    (host.work / "train.py").write_text(PROGRAM)
    words = [
        "--lr=0.1",
        "two words",
        "$(touch hacked) '\"; x",
        "a\nb",
        "é",
        "yes",
        "1e3",
        "--",
        "{lr}",
    ]
    options = ["--gpus", "0", "-t", "10m", "--name", "mine", "job.ranks_per_node=2"]
    result = host.hpc_amp("run", "train.py", *options, "--", *words)
    assert result.returncode == 0, result.stderr
    said = sorted(line for line in result.stdout.splitlines() if "]: said " in line)
    assert said == [f"[rank{rank}]: said {json.dumps(['2', *words])}" for rank in range(2)]
    assert "mine: finished" in result.stdout
    assert not (host.work / "hacked").exists()


def test_what_is_saved_is_what_is_submitted(host: StubHost) -> None:
    (host.work / "my program").write_text("#!/bin/sh\necho started\n")
    (host.work / "my program").chmod(0o755)
    given = ["-N", "2", "--gpus", "4", "-q", "short", "-A", "proj", "-t", "1h", "site=slurm"]
    run_id = ["--run-id", "20260101-000000-aaaa"]
    given += ["container.env={A: '1'}", "job.nodes=3"]
    given += ["--save", "job.yaml", "--dry-run", *run_id]
    direct = host.hpc_amp("submit", "my program", *given, "--", "0x10", "no")
    assert direct.returncode == 0, direct.stderr
    again = host.hpc_amp("render", "job.yaml", *run_id)
    assert again.stdout == direct.stdout
    job = load_job(host.work / "job.yaml").job
    assert job.name == "my-program" and job.run == [str(host.work / "my program"), "0x10", "no"]
    resources = job.resources
    assert (resources.nodes, resources.gpus_per_node) == (
        3,
        4,
    )  # a key counts more than its short form
    assert (resources.queue, resources.account, resources.walltime) == ("short", "proj", "1h")
    refused = host.hpc_amp("submit", "my program", "--save", "job.yaml", "--dry-run")
    assert refused.returncode == 2 and "job.yaml already exists" in refused.stderr


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["folder"], "folder is a folder; name a job file or a program in it"),
        (["image.sif"], "hpc-amp submit train.py --image image.sif"),
        (["old.sh"], "old.sh is a job script with directives of its own; hpc-amp init old.sh"),
        (["job.yaml", "--", "--lr", "1"], "arguments after -- are for a program"),
        (["missing.py"], "missing.py: there is no such job file; check the path"),
        (["trian.py"], "trian.py: there is no such job file; did you mean train.py?"),
        (["trian"], "trian: there is no such job file; did you mean train.py?"),
        (["job.yml"], "job.yml: there is no such job file; did you mean job.yaml?"),
        (
            ["train.py", "--lr", "1"],
            "No such option '--lr'. Arguments of a program follow after --.",
        ),
        (["train.py", "--nods", "1"], "No such option '--nods'. Did you mean '--nodes'?"),
        (["train.py", "--gpus", "many"], "job.gpus_per_node: must be a whole number"),
    ],
)
def test_what_is_not_a_job_is_refused_with_what_to_type(
    host: StubHost, given: list[str], why: str
) -> None:
    (host.work / "folder").mkdir()
    (host.work / "old.sh").write_text("#!/bin/sh\n#SBATCH -N 2\nsrun python train.py\n")
    (host.work / "job.yaml").write_text("name: a\nrun: [python]\n")
    (host.work / "train.py").write_text("")
    result = host.hpc_amp("submit", *given)
    assert result.returncode == 2
    assert why in result.stderr and result.stderr.count("\n") == 1
    assert not (host.work / "runs").exists()


def test_the_name_of_a_run_is_no_job_file(host: StubHost) -> None:
    (host.work / "runs/cifar/20261130-000000-aaaa").mkdir(parents=True)
    (host.work / "runs/cifar/20261130-000000-aaaa/job.json").write_text("{}")
    result = host.hpc_amp("submit", "cifar")
    assert result.returncode == 2
    assert result.stderr == (
        "hpc-amp: cifar is the name of a run, and no job file; "
        "hpc-amp submit runs/cifar/latest runs its job again\n"
    )


SLURM = """#!/bin/bash
#SBATCH --job-name=res/net
#SBATCH -N 2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4 --cpus-per-task=8
#SBATCH --time=90
#SBATCH -p gpu
#SBATCH --account=proj1 --mem=200G
#SBATCH --constraint=a100
#SBATCH --output=log-%j.txt
module load apptainer cuda/12
export NCCL_DEBUG=INFO
export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1)
DATA=/scratch/data
if [ -n "$DEBUG" ]; then
  export NCCL_DEBUG=TRACE
fi
mkdir -p out
srun apptainer exec --nv -B /scratch:/scratch --cleanenv pytorch.sif \\
   python3 -u train.py --data $DATA --lr 0.1 --tag $TAG
"""
TORCHRUN = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --cpus-per-task=32
#SBATCH --gres=gpu:a100:4 --time=1-00:00:00
srun torchrun --nnodes=2 --nproc_per_node=4 --rdzv_endpoint=$head:29500 train.py --batch 8
"""
PBS = """#!/bin/bash
#PBS -N vit
#PBS -l select=4:ncpus=64:ngpus=4:mpiprocs=4,walltime=12:00:00
#PBS -l place=scatter -q preemptable
#PBS -A Proj
#PBS -j oe
cd $PBS_O_WORKDIR
module load conda; conda activate base
mpiexec -n 16 --ppn 4 singularity exec --nv /i/t.sif python -m pkg.train -e 3
"""
COBALT = """#!/bin/bash
#COBALT -n 2 -t 60 -q single-gpu -A Proj
source /lus/venv/bin/activate
mpirun -n 16 -N 8 -hostfile $COBALT_NODEFILE python train.py
"""
GRID_ENGINE = """#!/bin/bash
#$ -N fit
#$ -l h_rt=02:00:00,gpu=2
#$ -P proj
#$ -cwd
python train.py --epochs 3
"""


def drafted(folder: Path, script: str) -> tuple[dict[str, object], str]:
    """The keys of the job file that is drafted from a script, and its text."""
    path = folder / "old script.sh"
    path.write_text(script)
    text = draft_from_script(path)
    job = load_job_text(text)
    return job, text


def load_job_text(text: str) -> dict[str, object]:
    job = read_job(JobText(Path("draft"), text)).validate().job
    resources = job.resources
    return {
        "name": job.name, "run": job.run, "nodes": resources.nodes, "gpus": resources.gpus_per_node,
        "ranks": job.ranks_per_node, "cpus": resources.cpus_per_gpu, "time": resources.walltime,
        "queue": resources.queue, "account": resources.account, "memory": resources.memory,
        "further": resources.directives, "setup": resources.setup, "image": job.container.image,
        "bind": job.container.bind, "args": job.container.args,
    }  # fmt: skip


def test_a_slurm_script_becomes_a_job_file(tmp_path: Path) -> None:
    job, text = drafted(tmp_path, SLURM)
    assert job == {
        "name": "res-net", "nodes": 2, "gpus": 4, "ranks": 4, "cpus": 8, "time": "01:30:00",
        "queue": "gpu", "account": "proj1", "memory": "200GiB", "further": ["--constraint=a100"],
        "setup": "module load apptainer cuda/12\nexport NCCL_DEBUG=INFO\nDATA=/scratch/data\n",
        "image": "pytorch.sif", "bind": ["/scratch:/scratch"], "args": ["--cleanenv"],
        "run": ["python", "-u", "train.py", "--data", "/scratch/data", "--lr", "0.1",
                "--tag", "$TAG"],
    }  # fmt: skip
    for remark in (
        "line 13: left out, hpc-amp sets it: export MASTER_ADDR=",
        "line 16: not taken over: export NCCL_DEBUG=TRACE",
        "line 18: not taken over: mkdir -p out",
        "no shell replaces $TAG",
    ):
        assert remark in text


def test_torchrun_is_left_out(tmp_path: Path) -> None:
    job, text = drafted(tmp_path, TORCHRUN)
    wanted = {"run": ["python", "train.py", "--batch", "8"], "gpus": 4, "ranks": 4, "cpus": 8}
    assert job | wanted == job
    assert job["time"] == "1-00:00:00" and job["name"] == "old-script"
    assert "lint found in it" in text and "29500" in text  # the port that all jobs would share


def test_scripts_of_other_schedulers_become_job_files(tmp_path: Path) -> None:
    job, _ = drafted(tmp_path, PBS)
    wanted = {
        "name": "vit", "nodes": 4, "gpus": 4, "ranks": 4, "time": "12:00:00",
        "queue": "preemptable", "account": "Proj", "further": ["-l place=scatter"],
        "image": "/i/t.sif",
        "setup": "module load conda; conda activate base\n",
        "run": ["python", "-m", "pkg.train", "-e", "3"],
    }  # fmt: skip
    assert job | wanted == job
    job, _ = drafted(tmp_path, COBALT)
    wanted = {"nodes": 2, "gpus": 0, "ranks": 8, "time": "01:00:00", "run": ["python", "train.py"]}
    assert job | wanted == job
    job, _ = drafted(tmp_path, GRID_ENGINE)
    wanted = {"name": "fit", "nodes": 1, "time": "02:00:00", "account": "proj"}
    assert job | wanted == job
    assert job["run"] == ["python", "train.py", "--epochs", "3"]


def test_a_script_without_a_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="starts no program that hpc-amp recognises"):
        drafted(tmp_path, "#!/bin/sh\n#SBATCH -N 1\nls\n")


def test_init_drafts_from_programs_and_scripts(host: StubHost) -> None:
    (host.work / "train.py").write_text(PROGRAM)
    (host.work / "old.sbatch").write_text(TORCHRUN)
    for name in ("train.py", "old.sbatch"):
        result = host.hpc_amp("init", name)
        path = f"{name.partition('.')[0]}.yaml"
        assert result.stdout == f"wrote {path}; next: hpc-amp validate {path}\n", result.stderr
        assert host.hpc_amp("validate", path).returncode == 0
        assert f"{path} already exists" in host.hpc_amp("init", name).stderr
    assert "no file none.py" in host.hpc_amp("init", "none.py").stderr
    (host.work / "notes.txt").write_text("text")
    assert "neither a program nor a job script" in host.hpc_amp("init", "notes.txt").stderr


def without_places(node: Node | None) -> object:
    """A tree as plain values, with the quotes of scalars."""
    if isinstance(node, MappingNode):
        return {name: without_places(below) for name, below in node.entries.items()}
    if isinstance(node, Items):
        return [without_places(item) for item in node.items]
    assert isinstance(node, Scalar)
    return (node.text, node.quoted)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_tree_that_is_written_is_read_again(path: Path) -> None:
    tree = read_job(path).tree
    again = read_job(JobText(path, tree_text(tree))).tree
    assert without_places(again) == without_places(tree)


@pytest.mark.parametrize(
    "text", ["1e3", "0x10", "~", "no", "01:00:00", "a: b", "- x", "#", "é\n", "*a"]
)
def test_any_scalar_is_written_as_it_is_read(text: str) -> None:
    override = f"container.env={{A: {json.dumps(text)}}}"
    tree = read_job(JobText(Path("x"), "name: a\nrun: [x]\n"), [override]).tree
    again = read_job(JobText(Path("x"), tree_text(tree))).validate().job
    assert again.container.env == {"A": text}


@pytest.mark.parametrize(
    ("limit", "slurm", "pbs"),
    [
        ("90", 5400, 90),
        ("10:30", 630, 630),
        ("01:00:00", 3600, 3600),
        ("2-0", 172800, 172800),
        ("1-02:03", 93780, 93780),
        ("1-02:03:04", 93784, 93784),
        ("UNLIMITED", None, None),
    ],
)
def test_time_limits_of_directives(limit: str, slurm: int | None, pbs: int | None) -> None:
    found: dict[str, Grammar] = {grammar.name: grammar for grammar in grammars()}
    assert found["slurm"].seconds(limit) == slurm
    assert found["pbs"].seconds(limit) == pbs


def test_the_examples_of_the_help_parse(host: StubHost) -> None:
    """`hpc-amp submit --help` shows a command; its options exist."""
    (host.work / "train.py").write_text("")
    (host.work / "pytorch.sif").write_text("hsqs: the beginning of an image")
    help_text = host.hpc_amp("submit", "--help").stdout
    line = next(line for line in help_text.splitlines() if "hpc-amp submit train.py" in line)
    words = shlex.split(line)[1:]
    at = words.index("--")
    result = host.hpc_amp(*words[:at], "--dry-run", "site=slurm", *words[at:])
    assert result.returncode == 0, result.stderr
    assert "--job-name=train\n" in result.stdout and "--nodes=2" in result.stdout


# ---- values and results --------------------------------------------------------------------------
REPORTS = """import os, sys
from hpc_amp import report
assert os.environ["HPC_AMP_RESUMES"] == "0"
assert os.path.exists(os.environ["HPC_AMP_RUN_DIR"] + "/launch.sh")
lr, rank = float(sys.argv[1].partition("=")[2]), float(os.environ["RANK"])
for step in (1, 2):
    report(step, total_steps=2, loss=lr / step + rank, lr=lr)
report(accuracy=0.5)
"""


def test_what_a_program_reports_is_shown_and_ranked(host: StubHost) -> None:
    (host.work / "fit.py").write_text(REPORTS)
    shown = host.hpc_amp("run", "fit.py", "--gpus", "0", "job.ranks_per_node=2", "--", "--lr=3")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    for row in ("loss      1.5", "lr        3", "accuracy  0.5"):
        assert f"  {row}\n" in shown.stdout
    (status,) = json.loads(host.hpc_amp("status", "fit", "--json").stdout)
    assert (status["step"], status["total_steps"]) == (2, 2)
    lines = (Path(status["run_dir"]) / "metrics.jsonl").read_text().splitlines()
    assert [set(json.loads(line)) for line in lines] == [
        {"step", "time", "attempt", "loss", "lr"},
        {"step", "time", "attempt", "loss", "lr"},
        {"time", "attempt", "accuracy"},
    ]

    swept = host.hpc_amp(
        "sweep", "fit.py", "--gpus", "0", "site=local", "--", "--lr=0.2,0.1", "{x}"
    )
    assert swept.returncode == 0, swept.stdout + swept.stderr
    ranking = json.loads(
        host.hpc_amp("sweep", "report", "fit", "--metric", "loss", "--json").stdout
    )
    assert [point["value"] for point in ranking["ranked"]] == [0.05, 0.1]


def test_report_outside_of_a_job_does_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from hpc_amp import report

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HPC_AMP_RUN_DIR", raising=False)
    report(1, loss=0.5)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises((TypeError, ValueError)):
        report(loss="small")  # type: ignore[arg-type]


def test_values_are_put_into_the_words_of_run() -> None:
    text = (
        'name: a\nrun: [x, "--lr={lr}", "{lr}{n}", "{other}", "{}"]\nvalues: {lr: 0.10, n: "a b"}\n'
    )
    job = read_job(JobText(Path("job"), text), ["values.n={lr}"]).validate().job
    assert job.run == ["x", "--lr=0.10", "0.10{lr}", "{other}", "{}"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("run: [x]\nvalues: {lr: 1}", "values.lr: run has no {lr}"),
        ("train: {}\nvalues: {lr: 1}", "values.lr: run has no {lr}"),
        ('run: ["{a-b}"]\nvalues: {a-b: 1}', "'a-b' is not a name of letters, digits and _"),
    ],
)
def test_values_that_have_no_place_are_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigError) as failed:
        read_job(JobText(Path("job"), f"name: a\n{text}\n")).validate()
    assert why in str(failed.value)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_job_with_all_its_keys_is_the_same_job(path: Path) -> None:
    loaded = load_job(path, ["job.nodes=2", "container.env={A: '1', B: 'x: y'}"])
    for origins in (False, True):
        again = read_job(JobText(path, job_text(loaded, origins=origins))).validate()
        assert again.job == loaded.job


def test_config_shows_where_values_are_from(host: StubHost) -> None:
    text = 'name: a\nrun: [x, "{n}"]\nvalues: {n: 1}\njob:\n  walltime: 2h\n'
    (host.work / "job.yaml").write_text(text)
    shown = host.hpc_amp("config", "job.yaml", "--origin", "-N", "3").stdout
    places = {}
    for line in shown.splitlines():
        key, _, place = line.partition("#")
        places[key.strip()] = place.strip()
    assert places["name: a"] == "job.yaml:1"
    assert places["run: [x, '1']"] == "job.yaml:2"
    assert places["walltime: 2h"] == "job.yaml:5"
    assert places["nodes: 3"] == "override 'job.nodes=3'"
    assert places["cpus_per_gpu: 1"] == "default"


# ---- a run again ---------------------------------------------------------------------------------
def test_a_run_is_run_again_with_its_code_and_settings(
    host: StubHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    (host.work / "src").mkdir()
    (host.work / "src" / "say.py").write_text(PROGRAM)
    text = "name: again\nsite: local\ncode: src\nrun: [python, say.py, '{n}', old]\n"
    (host.work / "job.yaml").write_text(text + "values: {n: 1}\njob: {gpus_per_node: 0}\n")
    first = host.hpc_amp("run", "job.yaml", "values.n=2")
    assert 'said ["1", "2", "old"]' in first.stdout, first.stderr
    (host.work / "src" / "say.py").write_text("broken")
    (host.work / "job.yaml").write_text("broken")
    elsewhere = host.folder / "elsewhere"
    elsewhere.mkdir()
    run = host.work / "runs" / "again" / "latest"

    second = host.hpc_amp("run", str(run), cwd=elsewhere)
    assert second.returncode == 0, second.stdout + second.stderr
    assert 'said ["1", "2", "old"]' in second.stdout
    third = host.hpc_amp("run", str(run), "values.n=3", cwd=elsewhere)
    assert 'said ["1", "3", "old"]' in third.stdout, third.stderr
    assert len(list((host.work / "runs" / "again").glob("2*"))) == 3
    assert list(elsewhere.iterdir()) == []


def test_a_run_that_does_not_record_its_submission_is_not_run_again(host: StubHost) -> None:
    run = host.work / "run"
    run.mkdir()
    (run / "job.json").write_text('{"job": {}, "schema": 1}')
    result = host.hpc_amp("submit", "run")
    assert result.returncode == 2 and result.stderr.count("\n") == 1


# ---- what a hostile reading found ----------------------------------------------------------------
def test_a_run_is_named_where_its_paths_start(host: StubHost) -> None:
    """Only what changes to the folder of its submission takes a run from another folder."""
    folder = host.work / "d$HOME 'x'"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "say.py").write_text(PROGRAM)
    (folder / "job.yaml").write_text(
        "name: a\nsite: local\ncode: src\nrun: [python, say.py]\njob: {gpus_per_node: 0}\n"
    )
    assert host.hpc_amp("run", "job.yaml", cwd=folder).returncode == 0
    run = str(folder / "runs" / "a" / "latest")
    again = host.hpc_amp("run", run)
    assert again.returncode == 0 and 'said ["1"]' in again.stdout, again.stdout + again.stderr
    for words in (["sweep", run, "job.walltime=1h,2h"], ["config", run], ["validate", run]):
        result = host.hpc_amp(*words)
        assert result.returncode == 2 and "was submitted in" in result.stderr
    saved = host.hpc_amp("submit", run, "--save", "s.yaml", "--dry-run")
    assert saved.returncode == 2 and not (host.work / "s.yaml").exists()
    inside = host.hpc_amp("validate", run, cwd=folder)
    assert " is valid: a, 1 rank(s)" in inside.stdout
    assert "JobText" not in inside.stdout


def test_a_refused_job_is_not_saved(host: StubHost) -> None:
    (host.work / "train.py").write_text("")
    result = host.hpc_amp("submit", "train.py", "job.nodes=x", "--save", "out.yaml")
    assert result.returncode == 2 and not (host.work / "out.yaml").exists()


def test_programs_with_odd_names(host: StubHost) -> None:
    (host.work / "-dash.py").write_text(PROGRAM)
    shown = host.hpc_amp("run", "./-dash.py", "--gpus", "0", "site=local", "--", "a")
    assert 'said ["1", "a"]' in shown.stdout, shown.stdout + shown.stderr
    job = host.work / "job"
    job.write_text("name: a\nsite: slurm\nrun: [x]\njob: {gpus_per_node: 0}\n")
    job.chmod(0o755)  # as every file on some file systems
    assert "job is valid: a," in host.hpc_amp("validate", "job").stdout


@pytest.mark.parametrize("origins", [False, True])
def test_long_and_odd_values_survive_config(origins: bool) -> None:
    words = ["a" * 60 + ": " + "b" * 80 + " c # d", "x\ny", "", "'", " lead"]
    setup = json.dumps("a # b\nc")
    text = f"name: a\nrun: {json.dumps(words)}\njob: {{setup: {setup}}}\n"
    loaded = read_job(JobText(Path("x"), text)).validate()
    again = read_job(JobText(Path("x"), job_text(loaded, origins=origins))).validate()
    assert again.job == loaded.job


def test_arguments_with_odd_names_vary() -> None:
    words, overrides = varied(["--2d=1,2", "--é=1,2", "--a-b=1,2", "--a_b=3,4", "x=1,2", "--n=1"])
    assert words == ["--2d={_2d}", "--é={_}", "--a-b={a_b}", "--a_b={a_b_}", "x=1,2", "--n=1"]
    assert overrides == ["values._2d=1,2", "values._=1,2", "values.a_b=1,2", "values.a_b_=3,4"]


def test_the_values_of_an_argument_may_be_a_word_of_their_own() -> None:
    words, overrides = varied(["--lr", "0.1,0.2", "-b", "-1,1", "--wd=0", "a,b", "c,d", "--x", "1"])
    assert words == ["--lr", "{lr}", "-b", "{b}", "--wd=0", "a,b", "c,d", "--x", "1"]
    assert overrides == ["values.lr=0.1,0.2", "values.b=-1,1"]
    assert varied(["-x", "-.5,.5", "-Wa,b", "-1"])[1] == ["values.x=-.5,.5"]


@pytest.mark.parametrize("first", ["1,2", "-1,2"])
def test_an_argument_with_several_values_in_two_words_is_refused(first: str) -> None:
    with pytest.raises(UsageError) as caught:
        varied(["--range", first, "3,4"])
    assert str(caught.value) == (
        f"an argument has several values in two words: {first} 3,4; "
        f"name both: values.a={first} values.b=3,4 -- ... {{a}} {{b}}"
    )
    assert varied(["--range=1,2", "3,4"])[0] == ["--range={range}", "3,4"]


def test_a_value_in_quotes_may_have_a_comma() -> None:
    given = ["--betas", "'0.9,0.99'", '--on="0,1"', "--say='a'", "'b,c'", "'d,e'", "--lr=1,'2,3'"]
    words, overrides = varied(given)
    assert words == [
        *("--betas", "{betas}", "--on={on}", "--say='a'", "'b,c'", "'d,e'", "--lr={lr}")
    ]
    job = JobText(Path("x"), f"name: a\nrun: {json.dumps(words)}\n", tuple(overrides[:2]))
    run = read_job(job, ["values.lr='2,3'"]).validate().job.run
    assert run == ["--betas", "0.9,0.99", "--on=0,1", "--say='a'", "'b,c'", "'d,e'", "--lr=2,3"]


def test_variables_of_a_shell_are_not_values() -> None:
    text = 'name: a\nrun: [sh, -c, "echo ${lr} {lr}"]\nvalues: {lr: 1}\n'
    assert read_job(JobText(Path("x"), text)).validate().job.run == ["sh", "-c", "echo ${lr} 1"]


ODD = b"""#!/bin/bash
#SBATCH -N 2 --gpus-per-node=4
export FOO="a
 b"
setup() { module load never; }
( module load sub )
export MASTER_PORT=1; module load cuda
cd $SLURM_SUBMIT_DIR && module load foo
make caf\xe9
X=1 srun --export=ALL,Y=2 python a.py $(cat x) "${Z:-1}" < in.txt > out.txt && srun python b.py
"""


def test_what_is_not_taken_over_from_a_script_is_said(tmp_path: Path) -> None:
    path = tmp_path / "a\nrun: [rm].sbatch"
    path.write_bytes(ODD)
    text = draft_from_script(path)
    text.encode()  # no surrogates
    job = load_job_text(text)
    assert job["setup"] == "" and job["nodes"] == 2
    remarks = [line for line in text.splitlines() if line.startswith("# - ")]
    for part in (
        'line 3: not taken over: export FOO="a',
        "line 5: not taken over",
        "line 6: not taken over: ( module load sub )",
        "line 7: not taken over: export MASTER_PORT=1; module load cuda",
        "line 8: not taken over: cd $SLURM_SUBMIT_DIR && module load foo",
        "line 10: only one of its commands is taken over",
    ):
        assert any(part in remark for remark in remarks), (part, remarks)


def test_what_belongs_to_the_command_of_a_script_is_said(tmp_path: Path) -> None:
    script = "#!/bin/bash\n#SBATCH -N 2\nX=1 srun --export=ALL,Y=2 python a.py $(cat x) < i > o\n"
    _, text = drafted(tmp_path, script)
    for part in ("X=1", "--export=ALL,Y=2", "its redirections", "no shell replaces $("):
        assert part in text
    _, text = drafted(tmp_path, "#!/bin/bash\n#SBATCH -N 2\nsrun python - <<EOF\nx\nEOF\n")
    assert "the text that it reads" in text


def test_reports_keep_what_hpc_amp_writes(host: StubHost) -> None:
    program = (
        "from hpc_amp import report\nimport math\n"
        "try:\n    report(1, time=5)\nexcept ValueError as error:\n    print('refused', error)\n"
        "try:\n    report(1.5)\nexcept TypeError as error:\n    print('refused too')\n"
        "report(6, state=3.0, loss=math.nan)\n"
    )
    (host.work / "fit.py").write_text(program)
    options = ["--gpus", "0", "site=local", "container.env={TOKEN: secret}"]
    first = host.hpc_amp("run", "fit.py", *options)
    assert "refused report: time" in first.stdout and "refused too" in first.stdout, first.stdout
    host.hpc_amp("run", "fit.py", *options[:3], "container.env={TOKEN: other}")
    runs = sorted(str(path) for path in (host.work / "runs" / "fit").glob("2*"))
    assert "\t6\t" in host.hpc_amp("status").stdout
    assert "step 6\n" in host.hpc_amp("status", runs[0]).stdout
    shown = host.hpc_amp("compare", *runs)
    assert "secret" not in shown.stdout and "container.env.TOKEN" in shown.stdout
    plain = json.loads(host.hpc_amp("compare", *runs, "--json").stdout, parse_constant=pytest.fail)
    assert plain["results"]["state"] == ["finished", "finished"]
    assert plain["results"]["loss"] == [None, None]
    (Path(runs[0]) / "summary.json").write_text('{"metrics": [1]}')
    assert host.hpc_amp("compare", *runs).returncode == 0
