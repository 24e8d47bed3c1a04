"""`hpc-amp scale report` as users call it, and each form of its output but the page.

After a change that is meant: `python -m pytest tests/unit/test_study_report.py` shows the new text.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from support.stubs import StubHost
from support.studies import (
    make_study,
    measure,
    rank_file,
    read_study,
    share,
    submit_run,
    write_timing,
)
from support.terminal import Terminal

from hpc_amp.cli.options import DefaultGroup
from hpc_amp.study.analysis import analyse
from hpc_amp.study.compare import compare, labels
from hpc_amp.study.export import to_plain
from hpc_amp.study.latex import escape, to_latex
from hpc_amp.study.page import to_html
from hpc_amp.study.text import to_text

TEXT = """\
cifar  20261127-223455-kqzf  strong and weak scaling on 1, 2 and 4 nodes, 2 runs each; 9 of 12 runs measured
NVIDIA A100-SXM4-40GB, torch 2.6.0, fp16, synthetic data
site local

strong scaling, global batch 512
  nodes  ranks  runs  step ms  middle half  samples/s  speedup    efficiency
      1      4   2/2      100      100-100      5,120     1.00       100.0 %
      2      8   2/2     60.0    60.0-60.0      8,533     1.67  83.3 ± 0.5 %
      4     16   1/2     40.0    40.0-40.0     12,800     2.50        62.5 %
  Amdahl: serial fraction 20.0 ± 0.1 % (95 % interval); by this law, speedup over 1 node stays below 5. Points deviate by at most 0.0 %.
  Efficiency falls below 75 % between 2 and 4 nodes, at about 2.64 by interpolation.

where a step's time goes, strong
  nodes  compute  communication  data wait  slowest rank
      1     90 %            8 %        2 %  -
      2     90 %            8 %        2 %  -
      4     90 %            8 %        2 %  -

all-reduce of the gradients alone, strong
  nodes  ranks   MiB    ms  middle half  bus GB/s  of a step
      2      8  42.6  4.00    4.00-4.00      19.6        7 %

weak scaling, batch 128 a node
  nodes  ranks  runs  step ms  middle half  samples/s  speedup  efficiency
      1      4   2/2      100      100-100      1,280     1.00     100.0 %
      2      8   2/2      105      105-105      2,438     1.90      95.2 %
      4      -   0/2        -            -          -        -           -
  Gustafson: serial fraction 9.5 ± 0.0 % (95 % interval); by this law, efficiency relative to 1 node stays above 90 %. Two numbers of nodes cannot show whether the law holds.
  Efficiency is 75 % or more on all measured numbers of nodes, up to 2.

where a step's time goes, weak
  nodes  compute  communication  data wait  slowest rank
      1     90 %            8 %        2 %  -
      2     90 %            8 %        2 %  -
"""  # noqa: E501


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Strong and weak scaling, with a run that failed and a point that was never submitted."""
    folder = make_study(tmp_path, kind="both", nodes=(1, 2, 4), repeats=2)
    for repeat, change in ((1, 0.9995), (2, 1.0005)):
        measure(folder, "strong", 1, repeat, 0.1)
        timing = measure(folder, "strong", 2, repeat, 0.06 * change)
        content = {"bytes": 44_700_000, "seconds": [0.004] * 3, "world_size": 8, "nodes": 2}
        (timing / "allreduce.json").write_text(json.dumps(content))
        measure(folder, "weak", 1, repeat, 0.1)
        measure(folder, "weak", 2, repeat, 0.105)
    measure(folder, "strong", 4, 1, 0.04)
    submit_run(folder, "strong", 4, 2, state="failed")
    return folder


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Half as fast, in fp32, strong scaling only."""
    folder = make_study(tmp_path, name="cifar_fp32", nodes=(1, 2), repeats=2)
    for repeat in (1, 2):
        measure(folder, "strong", 1, repeat, 0.2, precision="fp32")
        measure(folder, "strong", 2, repeat, 0.12, precision="fp32")
    return folder


def test_the_table_is_the_golden_one(study: Path) -> None:
    text = to_text([analyse(read_study(study))])
    told, _, rest = text.partition("\n\nnot measured\n")
    assert told + "\n" == TEXT
    assert "strong-n0004-r02  failed   out of memory         " in rest
    assert "weak-n0004-r02    missing  it was not submitted  -" in rest
    assert rest.endswith(
        "warnings\n"
        "  incomplete: strong, 4 nodes: 1 of 2 runs measured (1 failed)\n"
        "  incomplete: weak, 4 nodes: 0 of 2 runs measured (2 missing)\n"
        "  repeats: strong: one run on 4 nodes, so the scatter of runs is unknown"
    )


def test_a_report_writes_its_files_over_those_of_an_older_one(host: StubHost, study: Path) -> None:
    (study / "report").mkdir()
    (study / "report" / "report.txt").write_text("old")
    result = host.hpc_amp("scale", "report", str(study))
    assert (result.returncode, result.stderr) == (0, "")
    assert TEXT in result.stdout
    folder = study / "report"
    names = {
        "report.txt", "report.csv", "report.json", "report.html",
        "strong.png", "strong.svg", "strong.pdf", "weak.png", "weak.svg", "weak.pdf",
    }  # fmt: skip
    assert {path.name for path in folder.iterdir()} == names
    told = (folder / "report.txt").read_text()
    assert told.startswith("cifar  ") and told in result.stdout
    assert (folder / "strong.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "strong.pdf").read_bytes().startswith(b"%PDF-")


def test_a_name_means_its_newest_study(host: StubHost, study: Path) -> None:
    make_study(study.parents[2], study_id="20261128-000000-aaaa", nodes=(1,))
    studies = str(study.parents[1])
    result = host.hpc_amp("scale", "report", "cifar", "--studies-dir", studies, "--json")
    (facts,) = json.loads(result.stdout)["studies"]
    assert (facts["id"], facts["curves"]) == ("20261128-000000-aaaa", [])


def test_json(host: StubHost, study: Path) -> None:
    result = host.hpc_amp("scale", "report", str(study), "--json")
    facts = json.loads(result.stdout)
    assert set(facts) == {"schema", "studies"}
    (one,) = facts["studies"]
    strong, weak = one["curves"]
    assert (one["precision"], one["nodes"], weak["kind"]) == (["fp16"], [1, 2, 4], "weak")
    assert [p["efficiency"] for p in strong["points"]] == pytest.approx([1, 0.8333333, 0.625])
    assert strong["fit"]["serial_fraction"] == pytest.approx(0.2, abs=1e-3)
    assert strong["crossing"]["first_nodes"] == 4
    assert [run["state"] for run in one["runs"]].count("measured") == 9
    assert not (study / "report").exists()


def test_csv_has_what_json_has(host: StubHost, study: Path, tmp_path: Path) -> None:
    path = tmp_path / "new" / "points.csv"
    result = host.hpc_amp("scale", "report", str(study), "--json", "--csv", str(path))
    (one,) = json.loads(result.stdout)["studies"]
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    points = [point for curve in one["curves"] for point in curve["points"]]
    assert len(rows) == len(points) == 5
    for row, point in zip(rows, points, strict=True):
        assert row["study"] == "cifar"
        for key in ("nodes", "step_seconds", "samples_per_second", "speedup", "efficiency"):
            assert float(row[key]) == point[key]
        assert float(row["communication"]) == pytest.approx(0.08)
        assert row["slowest_rank"] == ""
    assert rows[1]["allreduce_bytes"] == "44700000"
    assert rows[0]["allreduce_bytes"] == ""


def test_two_studies_next_to_each_other(host: StubHost, study: Path, other: Path) -> None:
    out = study.parent / "both"
    words = ("scale", "report", str(study), "--compare", str(other), "--out", str(out))
    result = host.hpc_amp(*words)
    assert result.returncode == 0, result.stderr
    section = result.stdout[result.stdout.index("cifar_fp32 against cifar\n") :]
    rows = [line.split() for line in section.splitlines()[2:4]]
    assert rows == [
        ["strong", "1", "5,120", "2,560", "0.50", "±", "0.00", "100.0", "%", "100.0", "%"],
        ["strong", "2", "8,533", "4,267", "0.50", "±", "0.00", "83.3", "%", "83.3", "%"],
    ]
    assert "  precision: fp32 against fp16\n" in section
    assert not (study / "report").exists()
    facts = json.loads((out / "report.json").read_text())
    assert [entry["nodes"] for entry in facts["comparison"]["points"]] == [1, 2]
    assert [entry["ratio"] for entry in facts["comparison"]["points"]] == pytest.approx([0.5, 0.5])
    assert (out / "weak.svg").exists()


def test_studies_of_one_name_are_told_apart(tmp_path: Path) -> None:
    one = make_study(tmp_path, study_id="20261127-223455-aaaa", nodes=(1,), repeats=1)
    two = make_study(tmp_path, study_id="20261127-223455-bbbb", nodes=(1,), repeats=1)
    first, second = (analyse(read_study(folder)) for folder in (one, two))
    assert labels(first, second) == ("20261127-223455-aaaa", "20261127-223455-bbbb")
    assert compare(first, second) == []
    measure(one, "strong", 1, 1, 0.1)
    measure(two, "strong", 1, 1, 0.1, precision="bf16")
    first, second = (analyse(read_study(folder)) for folder in (one, two))
    assert labels(first, second) == ("cifar (fp16)", "cifar (bf16)")


def test_a_study_without_results_has_a_report(host: StubHost, tmp_path: Path) -> None:
    study = make_study(tmp_path, nodes=(1, 2), repeats=1)
    result = host.hpc_amp("scale", "report", str(study))
    assert result.returncode == 0, result.stderr
    assert "0 of 2 runs measured" in result.stdout
    assert "strong-n0002-r01  missing" in result.stdout
    assert (study / "report" / "report.html").exists()
    assert not (study / "report" / "strong.png").exists()
    latex = host.hpc_amp("scale", "report", str(study), "--latex")
    assert latex.stdout == "% cifar: nothing is measured yet\n"


@pytest.fixture
def no_matplotlib(host: StubHost, tmp_path: Path) -> str:
    """A PYTHONPATH. An import that fails is what a missing package looks like."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(
        "import sys\n"
        "class Hide:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('matplotlib', 'numpy', 'torch'):\n"
        "            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Hide())\n"
    )
    return f"{hidden}:{host.environ()['PYTHONPATH']}"


def test_without_matplotlib_there_are_no_pictures(
    host: StubHost, study: Path, no_matplotlib: str
) -> None:
    result = host.hpc_amp("scale", "report", str(study), PYTHONPATH=no_matplotlib)
    assert (result.returncode, result.stderr) == (0, "")
    assert TEXT in result.stdout
    assert result.stdout.endswith(
        "No pictures: matplotlib is not installed (pip install 'hpc-amp[report]').\n"
    )
    assert {path.name for path in (study / "report").iterdir()} == {
        "report.txt", "report.csv", "report.json", "report.html",
    }  # fmt: skip
    assert "matplotlib is not installed" in (study / "report" / "report.html").read_text()


def test_the_report_says_what_was_measured_where_and_how(tmp_path: Path) -> None:
    study = make_study(tmp_path, nodes=(1,), repeats=2, scheduler="slurm")
    path = study / "campaign.json"
    content = json.loads(path.read_text())
    content["options"]["command"] = "hpc-amp scale job.yaml --nodes 1"
    content["site"] = "frontier"
    path.write_text(json.dumps(content))
    environment = {"hpc_amp": "0.9", "python": "3.12.1", "cuda": "12.4", "torch": "2.6.0"}
    for repeat in (1, 2):
        measure(
            study, "strong", 1, repeat, 0.1,
            model="resnet50", parameters=25_557_032, environment=environment,
        )  # fmt: skip
    analysis = analyse(read_study(study))
    lines = to_text([analysis]).splitlines()[2:4]
    assert lines == [
        "model resnet50, 25,557,032 parameters, hpc-amp 0.9, CUDA 12.4, Python 3.12.1, "
        "site frontier",
        "made by: hpc-amp scale job.yaml --nodes 1",
    ]
    page = to_html([analysis], {})
    assert all(line in page for line in lines)
    (plain,) = to_plain([analysis])["studies"]
    assert plain["model"] == ["resnet50"]
    assert plain["parameters"] == [25_557_032]
    assert plain["versions"]["cuda"] == ["12.4"]
    assert (plain["site"], plain["command"]) == ("frontier", "hpc-amp scale job.yaml --nodes 1")


def test_latex(study: Path) -> None:
    latex = to_latex(analyse(read_study(study)))
    assert latex.count("\\begin{tabular}{rrrrrr}") == 2
    assert "    2 & 8 & 60.0 & 8,533 & 1.67 & 83.3 $\\pm$ 0.5 \\% \\\\\n" in latex
    assert "    4 & -{} & -{} & -{} & -{} & -{} \\\\\n" in latex
    assert "  \\caption{Strong scaling, global batch 512 (NVIDIA A100-{}SXM4-{}40GB, torch" in latex
    assert "\\label{tab:cifar-strong-scaling}" in latex
    assert latex.count("{") == latex.count("}")


def test_hostile_names_are_text_in_latex(tmp_path: Path) -> None:
    study = make_study(tmp_path, nodes=(1,), repeats=1)
    hostile = "50%_of $a&b #1 {x} ~^ \\input{/etc/passwd} <\"'`?` --"
    measure(study, "strong", 1, 1, 0.1, device=hostile)
    latex = to_latex(analyse(read_study(study)))
    assert (
        "50\\%\\_of \\$a\\&b \\#1 \\{x\\} \\textasciitilde{}\\textasciicircum{} "
        "\\textbackslash{}input\\{/etc/passwd\\} \\textless{}{\\char34}\\textquotesingle{}"
        "\\textasciigrave{}?\\textasciigrave{} -{}-{}"
    ) in latex
    assert "\\input" not in latex
    assert escape("a-b") == "a-{}b"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["scale", "report"], "there is no study in studies; name the study"),
        (["scale", "report", "nope"], "there is no study 'nope'"),
        (["scale", "report", "STUDY", "--compare", "nope"], "there is no study 'nope'"),
        (
            ["scale", "report", "STUDY", "--compare", "STUDY"],
            "is the same study; --compare another one",
        ),
        (["scale", "report", "STUDY", "--latex", "--json"], "Give either --latex or --json."),
        (["scale", "report", "STUDY", "--out", "/dev/null"], "/dev/null/report.txt cannot be"),
        (["scale", "report", "STUDY", "--csv", "/proc/x.csv"], "/proc/x.csv cannot be written"),
        (["scale", "nope"], "nope: there is no such job file"),
        (["scale", "--nope"], "No such option"),
        (["scale", "report", "STUDY", "--nope"], "No such option"),
    ],
)
def test_bad_input_is_one_line(host: StubHost, study: Path, words: list[str], message: str) -> None:
    result = host.hpc_amp(*(str(study) if word == "STUDY" else word for word in words))
    assert result.returncode == 2
    assert result.stderr.startswith("hpc-amp: ")
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not list(study.glob("report/.*"))


def test_a_report_asks_the_scheduler_only_about_runs_that_have_not_ended(
    host: StubHost, tmp_path: Path
) -> None:
    study = make_study(tmp_path, nodes=(1,), repeats=2, scheduler="slurm")
    measure(study, "strong", 1, 1, 0.1)
    run_dir = submit_run(study, "strong", 1, 2, state="submitted")
    (run_dir / "job.json").write_text(json.dumps({"scheduler": "slurm", "job": {}}))
    with (run_dir / "state.jsonl").open("a") as out:
        out.write(json.dumps({"time": 2, "state": "queued", "job_id": "42"}) + "\n")
    result = host.hpc_amp("scale", "report", str(study), "--json")
    (one,) = json.loads(result.stdout)["studies"]
    assert [run["state"] for run in one["runs"]] == ["measured", "lost"]
    asked = len(host.calls("squeue"))
    assert asked > 0

    write_timing(run_dir, [rank_file(rank, 1, [0.1] * 30) for rank in range(4)])
    with (run_dir / "state.jsonl").open("a") as out:
        out.write(json.dumps({"time": 3, "state": "finished"}) + "\n")
    result = host.hpc_amp("scale", "report", str(study), "--json")
    (one,) = json.loads(result.stdout)["studies"]
    assert [run["state"] for run in one["runs"]] == ["measured", "measured"]
    assert len(host.calls("squeue")) == asked


def test_a_terminal_gets_sentences_as_wide_as_it_is(
    host: StubHost, study: Path, no_matplotlib: str
) -> None:
    command = [sys.executable, "-m", "hpc_amp", "scale", "report", str(study)]
    environ = host.environ(PYTHONPATH=no_matplotlib)  # pictures take longer than the sentences
    with Terminal(command, cwd=host.work, environ=environ, columns=76) as terminal:
        assert terminal.end() == 0
    lines = terminal.seen.splitlines()
    assert "  Amdahl: serial fraction 20.0 ± 0.1 % (95 % interval); by this law, speedup" in lines
    assert "    over 1 node stays below 5. Points deviate by at most 0.0 %." in lines
    # Nothing is lost or changed, and tables are whole.
    printed = to_text([analyse(read_study(study))])
    assert " ".join(terminal.seen.split()).startswith(" ".join(printed.split()))
    assert "      2      8   2/2     60.0    60.0-60.0      8,533     1.67  83.3 ± 0.5 %" in lines


@pytest.mark.parametrize("width", range(40, 80))
def test_a_number_keeps_its_unit_at_any_width(study: Path, width: int) -> None:
    lines = to_text([analyse(read_study(study))], width).splitlines()
    assert not [line for line in lines if line.lstrip().startswith("%")]


def test_runs_that_both_kinds_share_are_counted_once(tmp_path: Path) -> None:
    """As `scale status` counts them."""
    study = make_study(tmp_path, kind="both", nodes=(1, 2), repeats=3)
    share(study, 1)
    measure(study, "strong", 1, 1, 0.1)
    measure(study, "weak", 2, 1, 0.1)
    assert "; 2 of 9 runs measured" in to_text([analyse(read_study(study))])


def test_no_numpy_and_no_torch_for_a_table(host: StubHost, study: Path) -> None:
    code = (
        "import sys\nfrom hpc_amp.cli.app import app\n"
        "app(['scale', 'report', sys.argv[1], '--latex'], standalone_mode=False)\n"
        "print(sorted({'numpy', 'torch', 'matplotlib'} & set(sys.modules)))\n"
    )
    result = host.python("-c", code, str(study))
    assert result.stdout.endswith("\n[]\n"), result.stderr


def test_words_that_are_no_command_go_to_the_default_one() -> None:
    @click.group(cls=DefaultGroup)
    def group() -> None:
        pass

    @group.command()
    def report() -> None:
        click.echo("the report")

    runner = CliRunner()
    assert runner.invoke(group, ["job.yaml"]).exit_code == 2

    @group.command(DefaultGroup.default)
    @click.argument("words", nargs=-1)
    @click.option("--dry-run", is_flag=True)
    def start(words: tuple[str, ...], dry_run: bool) -> None:
        click.echo(f"{words} {dry_run}")

    assert runner.invoke(group, ["report"]).output == "the report\n"
    assert runner.invoke(group, ["job.yaml", "a=1", "--dry-run"]).output == (
        "('job.yaml', 'a=1') True\n"
    )
    assert runner.invoke(group, ["--dry-run", "job.yaml"]).output == "('job.yaml',) True\n"
