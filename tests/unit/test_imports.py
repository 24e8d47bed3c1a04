"""What imports what: the command line answers at once on a login node, which has no torch; no
modules import each other in a circle; every package belongs to one of the two sides."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from importlinter import api
from support.environment import REPOSITORY, clean_environ
from support.stubs import RUN_ID, StubHost

from hpc_amp.jobs.code import JOB_SIDE

# Everything outside the standard library and the package itself. A new name here is a decision.
ALLOWED = {
    "help": {"click"},
    "dry run": {"click", "yaml", "_yaml"},
}
# What every Python process has, and what Cython registers for the C half of PyYAML.
ALWAYS = {"__main__", "hpc_amp", "cython_runtime"}
DUMP = (
    "import atexit, json, sys; before = set(sys.modules); out = open(sys.argv.pop(1), 'w')\n"
    "atexit.register(lambda: json.dump(sorted(set(sys.modules) - before), out))\n"
    "from hpc_amp.cli import main; main()"
)


def imported(host: StubHost, *words: str, **variables: str) -> set[str]:
    """The modules that a command has imported when it ends."""
    path = host.folder / "modules.json"
    result = host.python("-c", DUMP, str(path), *words, **variables)
    assert result.returncode == 0, result.stderr
    return set(json.loads(path.read_text()))


@pytest.mark.parametrize(
    ("case", "words"),
    [("help", ["--help"]), ("dry run", ["submit", "job.yaml", "--dry-run", "--run-id", RUN_ID])],
)
def test_only_what_is_on_the_list_is_imported(host: StubHost, case: str, words: list[str]) -> None:
    host.write_job({"name": "test", "site": "slurm", "train": {}, "job": {"gpus_per_node": 2}})

    modules = imported(host, *words)

    third_party = {name.partition(".")[0] for name in modules} - sys.stdlib_module_names - ALWAYS
    third_party -= {name for name in third_party if name.startswith("_cython_")}
    assert third_party <= ALLOWED[case]
    assert "hpc_amp.cli.app" in modules
    assert not {name for name in modules if name.startswith("hpc_amp.train")}


# The modules of this package that a command imports, if these are few. The rest of its time goes to
# Python and to click.
ALL = {
    "--help": {"hpc_amp.cli", "hpc_amp.cli.app", "hpc_amp.errors"},
    "": {"hpc_amp.cli", "hpc_amp.cli.app", "hpc_amp.errors"},  # the completion of a command
    "logs": {
        *("hpc_amp.cli", "hpc_amp.cli.app", "hpc_amp.cli.follow", "hpc_amp.cli.options"),
        *("hpc_amp.cli.runs", "hpc_amp.errors", "hpc_amp.files", "hpc_amp.jobs"),
        *("hpc_amp.jobs.events", "hpc_amp.jobs.known", "hpc_amp.jobs.places"),
    },
}


@pytest.mark.parametrize("words", ["--help", "", "logs"])
def test_what_is_asked_for_often_imports_little(host: StubHost, words: str) -> None:
    host.write_job({"name": "test", "site": "slurm", "train": {}, "job": {"gpus_per_node": 2}})
    assert host.hpc_amp("submit", "job.yaml").returncode == 0  # `logs` has a run to show
    asked = (
        {} if words else {"_HPC_AMP_COMPLETE": "bash_complete", "COMP_WORDS": "", "COMP_CWORD": "1"}
    )

    modules = imported(host, *words.split(), **asked)

    assert {name for name in modules if within(name, "hpc_amp")} - {"hpc_amp"} == ALL[words]


# What a command must not import, with all that is in it: it would start more slowly.
SLOW = {
    "status": {"yaml", "jinja2", "hpc_amp.config.schema", "hpc_amp.lint", "hpc_amp.jobs.submit"},
    "cancel": {"jinja2", "hpc_amp.lint", "hpc_amp.jobs.submit"},
    "submit": {
        *("hpc_amp.jobs.resume", "hpc_amp.jobs.change", "hpc_amp.jobs.control"),
        *("hpc_amp.gan", "hpc_amp.tasks.spade", "difflib", "csv", "random", "jinja2", "markupsafe"),
        *("hpc_amp.schedulers.pbs", "hpc_amp.schedulers.cobalt", "hpc_amp.schedulers.gridengine"),
        *("hpc_amp.schedulers.arrays", "hpc_amp.containers.podman", "hpc_amp.containers.apptainer"),
        *("hpc_amp.containers.image", "hpc_amp.config.command"),
    },
}
# Of a job on this machine, which has no directives.
HERE = {"hpc_amp.lint", "hpc_amp.finding", "hpc_amp.schedulers.grammar", "hpc_amp.schedulers.slurm"}
COMMANDS_OF_OTHERS = {
    *("hpc_amp.cli.bench", "hpc_amp.cli.campaigns", "hpc_amp.cli.container", "hpc_amp.cli.scale"),
    *("hpc_amp.cli.sweep", "hpc_amp.campaigns.submit", "hpc_amp.study", "hpc_amp.explain"),
}


@pytest.mark.parametrize(
    "words", ["status", "cancel test", "submit job.yaml", "submit job.yaml site=auto --dry-run"]
)
def test_commands_do_not_import_what_others_need(host: StubHost, words: str) -> None:
    host.write_job({"name": "test", "site": "slurm", "train": {}, "job": {"gpus_per_node": 2}})
    assert host.hpc_amp("submit", "job.yaml").returncode == 0  # `status` has a run to show

    modules = imported(host, *words.split(), SLURM_CONF="/etc/slurm.conf")

    unwanted = SLOW[words.split()[0]] | COMMANDS_OF_OTHERS
    assert not {name for name in modules for one in unwanted if within(name, one)}


def test_a_job_on_this_machine_needs_no_directives(host: StubHost) -> None:
    host.write_job({"name": "test", "site": "local", "train": {}, "job": {"gpus_per_node": 2}})

    modules = imported(host, "submit", "job.yaml", "--dry-run")

    unwanted = SLOW["submit"] | HERE | {"shutil"}
    assert not {name for name in modules for one in unwanted if within(name, one)}


DATACLASSES = (
    "import atexit, dataclasses, sys; out = open(sys.argv.pop(1), 'w')\n"
    "def made():\n"
    "    from hpc_amp.config.values import Section\n"
    "    for name, module in list(sys.modules.items()):\n"
    "        for one in vars(module).values() if name.startswith('hpc_amp') else ():\n"
    "            if isinstance(one, type) and dataclasses.is_dataclass(one):\n"
    "                if not issubclass(one, Section) or '__eq__' in vars(one):\n"
    "                    print(one.__name__, file=out, flush=True)\n"
    "atexit.register(made)\n"
    "from hpc_amp.cli import main; main()"
)


def test_few_dataclasses_are_made(host: StubHost) -> None:
    """Each takes longer than the import of a small module: see docs/decisions.md."""
    host.write_job({"name": "test", "site": "local", "train": {}, "job": {"gpus_per_node": 2}})
    path = host.folder / "dataclasses"

    result = host.python("-c", DATACLASSES, str(path), "submit", "job.yaml", "--dry-run")

    assert result.returncode == 0, result.stderr
    assert set(path.read_text().split()) == {"Interval", "Plan", "Spec"}


def test_what_must_not_be_imported_exists() -> None:
    known = {*modules_below(PACKAGE), *sys.stdlib_module_names, "yaml", "jinja2", "markupsafe"}

    unwanted = {*COMMANDS_OF_OTHERS, *HERE, *(name for names in SLOW.values() for name in names)}
    assert unwanted <= known


def test_a_rank_starts_without_torchvision() -> None:
    """It takes about as long to import as torch. Networks and data that need it import it."""
    pytest.importorskip("torch")
    modules = "sys, hpc_amp.train.session, hpc_amp.tasks.classification.task"
    code = f"import {modules}; print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], env=clean_environ(), text=True, capture_output=True
    )

    assert result.returncode == 0, result.stderr
    tops = {name.partition(".")[0] for name in result.stdout.split()}
    assert "torch" in tops
    assert not tops & {"torchvision", "tensorboard", "click", "yaml"}


def test_the_start_of_a_rank_imports_little() -> None:
    """Each rank imports this before its program."""
    code = "import sys, hpc_amp.distributed.exec; print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-S", "-c", code], env=clean_environ(), text=True, capture_output=True
    )

    assert result.returncode == 0, result.stderr
    slow = {"dataclasses", "inspect", "pathlib", "shutil", "subprocess", "typing"}
    assert not slow & set(result.stdout.split())


def test_the_list_holds_no_more_than_is_imported(host: StubHost) -> None:
    host.write_job({"name": "test", "site": "slurm", "train": {}, "job": {"gpus_per_node": 2}})

    modules = imported(host, "submit", "job.yaml", "--dry-run")

    assert {name.partition(".")[0] for name in modules} >= ALLOWED["dry run"] - {"_yaml"}


def test_submit_needs_no_torch(host: StubHost, tmp_path: Path) -> None:
    """Not even where it is installed and broken."""
    for name in ("torch", "torchvision", "numpy", "pydantic", "submitit", "rich", "tensorboard"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('must not be imported')\n")
    host.write_job({"name": "test", "site": "slurm", "train": {}, "job": {"gpus_per_node": 2}})
    path = f"{tmp_path}:{host.environ()['PYTHONPATH']}"

    for words in (["submit", "job.yaml"], ["status"], ["logs", "test"], ["cancel", "test"]):
        result = host.hpc_amp(*words, PYTHONPATH=path)
        assert result.returncode == 0, result.stderr


# ---- circles -------------------------------------------------------------------------------------

PACKAGE = REPOSITORY / "hpc_amp"


def modules_below(package: Path) -> dict[str, Path]:
    """The modules of a package by their full names; a package stands for its `__init__.py`."""
    modules = {}
    for path in package.rglob("*.py"):
        parts = path.relative_to(package.parent).with_suffix("").parts
        modules[".".join(parts).removesuffix(".__init__")] = path
    return modules


def imports_of(name: str, modules: Mapping[str, Path]) -> set[str]:
    """Which of `modules` the module imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(modules[name].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} has a relative import"
            package = str(node.module)
            inside = {f"{package}.{alias.name}" for alias in node.names}
            found |= inside & modules.keys()
            if inside - modules.keys():
                found.add(package)
    return found & modules.keys()


def cycles(package: Path) -> Iterator[list[str]]:
    """The groups of modules in which each one imports every other, by way of others or directly."""
    modules = modules_below(package)
    imports = {name: imports_of(name, modules) for name in modules}
    reached = {name: reachable(name, imports) for name in modules}
    grouped: set[str] = set()
    for name in sorted(modules):
        if name in reached[name] and name not in grouped:
            cycle = {other for other in reached[name] if name in reached[other]}
            grouped |= cycle
            yield sorted(cycle)


def reachable(start: str, imports: Mapping[str, set[str]]) -> set[str]:
    """What a module imports, directly or by way of others."""
    found: set[str] = set()
    todo = [start]
    while todo:
        new = imports[todo.pop()] - found
        found |= new
        todo += new
    return found


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Not for types alone either: who reads one of them would have to read all."""
    assert list(cycles(PACKAGE)) == []


def test_a_circle_is_found_wherever_its_imports_are(tmp_path: Path) -> None:
    package = tmp_path / "made"
    (package / "part").mkdir(parents=True)
    for name, text in {
        "__init__.py": "",
        "part/__init__.py": "",
        "first.py": "from made.part import second\n",
        "part/second.py": "def function():\n    import made.third\n",
        "third.py": "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from made.first import Name\n",
        "outside.py": "import made.first\nimport made.alone\n",
        "alone.py": "import json\n",
    }.items():
        (package / name).write_text(text)

    assert list(cycles(package)) == [["made.first", "made.part.second", "made.third"]]


# ---- the two sides -------------------------------------------------------------------------------


def within(name: str, package: str) -> bool:
    """Whether a module is `package` or lies in it. A `*` stands for any one name."""
    pattern = re.escape(package).replace(r"\*", r"\w+")
    return re.match(rf"{pattern}(\.|$)", name) is not None


def test_every_package_is_in_the_import_contracts() -> None:
    """Whatever is added to hpc_amp is declared as a part of a side, or as what both share, and the
    other side must not import it."""
    options = api.read_configuration(str(REPOSITORY / "pyproject.toml"))["contracts_options"]
    submit, job = options[0], options[1]
    assert (submit["name"], job["name"]) == (
        "The submit side imports neither torch nor the job side",
        "The job side imports nothing of the submit side",
    )
    modules = modules_below(PACKAGE)
    del modules["hpc_amp"]  # which Python imports before any part of it
    for name, path in modules.items():
        if path.name == "__init__.py" and len(ast.parse(path.read_text()).body) <= 1:
            continue  # a docstring alone, on the side of the modules below
        if re.fullmatch(r"hpc_amp\.tasks\.\w+\.(?!config$|task$)\w+", name):
            continue  # the other modules of a task, which its `task` alone imports
        in_submit = any(within(name, part) for part in submit["source_modules"])
        in_job = any(within(name, part) for part in job["source_modules"])
        kept_from_submit = any(within(name, part) for part in submit["forbidden_modules"])
        kept_from_job = any(within(name, part) for part in job["forbidden_modules"])

        assert in_submit or in_job, f"{name} is on no side"
        assert kept_from_submit == (not in_submit), name
        assert kept_from_job == (not in_job), name


def test_a_run_gets_the_job_side_and_what_both_share() -> None:
    options = api.read_configuration(str(REPOSITORY / "pyproject.toml"))["contracts_options"]
    sources = {name.removeprefix("hpc_amp.") for name in options[1]["source_modules"]}
    copied = {name.removesuffix(".py").replace("/", ".") for name in JOB_SIDE}

    assert copied - {"__init__", "py.typed", "host", "config.__init__"} == sources
