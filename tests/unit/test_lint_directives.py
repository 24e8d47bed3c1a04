"""Which lines each scheduler reads, how it splits them, and which words belong to options."""

from __future__ import annotations

import shlex
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hpc_amp.lint.linter import check, lint
from hpc_amp.lint.script import read_script
from hpc_amp.schedulers.cobalt.grammar import GRAMMAR as COBALT
from hpc_amp.schedulers.grammar import Grammar
from hpc_amp.schedulers.pbs.grammar import GRAMMAR as PBS
from hpc_amp.schedulers.pbs.grammar import resource_list
from hpc_amp.schedulers.slurm.grammar import GRAMMAR as SLURM
from hpc_amp.schedulers.slurm.scheduler import quote_directive

GRAMMARS: dict[str, Grammar] = {"slurm": SLURM, "pbs": PBS, "cobalt": COBALT}

# No control characters: nothing can carry them in a line.
one_line = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=40)
hostile = st.text(st.sampled_from("'\"\\ #$`%a-=,;*~é💥"), max_size=20)
values = st.one_of(one_line, hostile)


@given(st.lists(values, max_size=4))
@example(["", "-rf", "a\\", "it's", "# no comment"])
def test_pbs_reads_what_shlex_quotes(texts: list[str]) -> None:
    split = PBS.split(" " + " ".join(shlex.quote(text) for text in texts))

    assert [word.text for word in split.words] == texts
    assert split.unmatched is None


@given(st.lists(values, max_size=4))
@example(["", "-rf", "a\\", "it's \\'q\\' # no comment", "\u00a0\u2028\u3000"])
def test_slurm_reads_what_our_renderer_quotes(texts: list[str]) -> None:
    split = SLURM.split(" " + " ".join(quote_directive(text) for text in texts))

    assert [word.text for word in split.words] == texts
    assert (split.unmatched, split.comment) == (None, None)


@given(st.lists(st.text(st.characters(exclude_categories=["Cc", "Cs", "Z"]), min_size=1)))
def test_cobalt_only_parts_at_blanks(texts: list[str]) -> None:
    assert [word.text for word in COBALT.split(" \t".join(texts)).words] == texts


@given(values)
def test_no_tokenizer_fails(text: str) -> None:
    for split in (SLURM.split, PBS.split, COBALT.split):
        split(text)


@pytest.mark.parametrize(
    ("text", "words", "comment", "unmatched"),
    [
        (' a\'b c\'"d\\"" ', ['ab cd"'], None, None),
        (" a#b c", ["a"], "#b c", None),
        (" 'a#b' # c", ["a#b"], "# c", None),
        (" a\\ b \\", ["a b"], None, None),
        (" 'a\\'b'", ["a'b"], None, None),
        (" a 'b", ["a"], None, "'"),
        (" ''", [""], None, None),
        (" a\u00a0b", ["a\u00a0b"], None, None),
    ],
)
def test_slurm_words(
    text: str, words: list[str], comment: str | None, unmatched: str | None
) -> None:
    split = SLURM.split(text)

    assert [word.text for word in split.words] == words
    assert (split.comment, split.unmatched) == (comment, unmatched)


@pytest.mark.parametrize(
    ("text", "words", "unmatched"),
    [
        (" a'b\\ c'\"d\\\" ", ["ab\\ cd\\"], None),
        (" a#b # c", ["a#b", "#", "c"], None),
        (" a\\ b", ["a b"], None),
        (' "a', [], '"'),
    ],
)
def test_pbs_words(text: str, words: list[str], unmatched: str | None) -> None:
    split = PBS.split(text)

    assert [word.text for word in split.words] == words
    assert split.unmatched == unmatched


@pytest.mark.parametrize(
    ("scheduler", "text", "lines", "end"),
    [
        ("slurm", "#!/bin/sh\n#SBATCH a\n\n # c\n#SBATCH b\n#SBATCHc\n #SBATCH d\nx\n#SBATCH e",
         [2, 5, 6], 8),
        ("slurm", "#!/bin/sh\n:\n#SBATCH a\n", [], 2),
        ("pbs", "#PBS a\n \t#PBS b\n:\n\n##PBS c\n#pbs d\n#PBSe\nx=1\n#PBS f\n", [1, 2, 7], 8),
        ("cobalt", "#!/bin/sh\n#COBALT a\n#COBALT \n#COBALT b\n\n#COBALT c\n", [2, 3, 4], 5),
        ("cobalt", "#!/bin/sh\n#COBALT a\n#COBALT\n#COBALT b\n", [2], 3),
        ("cobalt", "#!/bin/sh\n#COBALT a\n#COBALT\tb\n", [2], 3),
        ("cobalt", "#!/bin/sh\n # c\n#COBALT a\n", [], 2),
    ],
)  # fmt: skip
def test_which_lines_are_read(scheduler: str, text: str, lines: list[int], end: int) -> None:
    header = GRAMMARS[scheduler].read(read_script(text.encode(), "").lines)

    assert [directive.line for directive in header.directives] == lines
    assert header.end == end


def options_of(scheduler: str, *directives: str) -> tuple[list[tuple[str, str | None]], list[str]]:
    grammar = GRAMMARS[scheduler]
    lines = ["#!/bin/sh", *(f"{grammar.marker} {one}" for one in directives)]
    options = grammar.parse(grammar.read(lines))
    found = [(option.name, option.value) for option in options.options]
    return found, [word.text for word in options.strays]


@pytest.mark.parametrize(
    ("scheduler", "directives", "options", "strays"),
    [
        ("slurm", ["-N2 -n 4", "--mem=1G"], [("nodes", "2"), ("ntasks", "4"), ("mem", "1G")], []),
        ("slurm", ["-HN2", "--exclusive", "-v"],
         [("hold", None), ("nodes", "2"), ("exclusive", None), ("verbose", None)], []),
        ("slurm", ["--ntasks-per-nod", "2"], [("ntasks-per-node", "2")], []),
        ("slurm", ["--job-name", "x y"], [("job-name", "x")], ["y"]),
        ("slurm", ["--plug-in a --other b", "-N 1"],
         [("plug-in", "a"), ("other", "b"), ("nodes", "1")], []),
        ("slurm", ["--tasks-per-node 2", "hetjob", "-N 1"],
         [("ntasks-per-node", "2"), ("nodes", "1")], []),
        ("pbs", ["-N a -j oe -V", "-lselect=1"],
         [("N", "a"), ("j", "oe"), ("V", None), ("l", "select=1")], []),
        ("pbs", ["-N a b -j oe", "-V"], [("N", "a"), ("V", None)], ["b"]),
        ("cobalt", ["-n 2 -t 10", "--attrs=a=1"],
         [("nodecount", "2"), ("time", "10"), ("attrs", "a=1")], []),
        ("cobalt", ["-n", "2", "x", "-t 10"], [("nodecount", "2")], ["x"]),
    ],
)  # fmt: skip
def test_options(
    scheduler: str,
    directives: list[str],
    options: list[tuple[str, str | None]],
    strays: list[str],
) -> None:
    assert options_of(scheduler, *directives) == (options, strays)


def test_a_pbs_resource_list() -> None:
    assert list(resource_list("select=2:ncpus=4,walltime=1:00:00,a='x,y',b")) == [
        ("select", "2:ncpus=4"),
        ("walltime", "1:00:00"),
        ("a", "'x,y'"),
        ("b", None),
    ]


def test_a_script_may_serve_several_schedulers_or_none() -> None:
    hybrid = b"#!/bin/bash\n#COBALT -n 2\n#SBATCH -N 2\n#PBS -N a\ncd $PBS_O_WORKDIR\n"

    assert check(hybrid, "").schedulers == ("slurm", "pbs", "cobalt")
    assert lint(hybrid, "") == []
    assert check(b"#!/bin/bash\nsbatch <<EOF\n#SBATCH -N 2\nEOF\n", "").schedulers == ()
    assert check(b"#!/bin/bash\nset -e\n#SBATCH -N 2\n", "").schedulers == ("slurm",)


@given(st.binary(max_size=200))
@example(b"")
@example(b"\n")
@example(b"\xff\xfe#\x00!")
@example(b"#!/bin/bash\n#SBATCH --comment=\xe9\nsrun 'x\n")
@example(b"#!/bin/bash\nsrun $( $( ` ${ \" '\n")
@example(b"#!/bin/csh\n#SBATCH -N 1\nsetenv RANK $SLURM_PROCID\n")
def test_no_bytes_make_it_fail(data: bytes) -> None:
    lint(data, "x")


pieces = st.sampled_from(
    ["#SBATCH ", "#PBS ", "#COBALT ", "\n", "'", '"', "\\", "$(", ")", "`", "${", "}", "<<EOF\n",
     "EOF\n", "srun ", "-n", " 2 ", "bash -c ", "$SLURM_PROCID", "export RANK=", "a=(", "#", ";",
     "f() {", "((", "case x in", "--export=", ",", "=", "-l select=1", "\r", "torchrun ", "\t"]
)  # fmt: skip


@given(st.lists(pieces, max_size=40))
def test_no_script_makes_it_fail(parts: list[str]) -> None:
    for finding in lint("".join(["#!/bin/bash\n", *parts]).encode(), "x"):
        assert 1 <= finding.line <= "".join(parts).count("\n") + 2


@pytest.mark.parametrize(
    "piece",
    ["#SBATCH -N 1\n", "echo $(echo $(date)) '\n' `x`\n", "srun a <<E\nx\nE\n", "$(", "'",
     "a=(b\n", "x" * 50],
)  # fmt: skip
def test_a_huge_file_takes_time_in_proportion(piece: str) -> None:
    start = time.process_time()
    lint(("#!/bin/bash\n#SBATCH -N 2\n" + piece * (200_000 // len(piece))).encode(), "x")

    assert time.process_time() - start < 5
