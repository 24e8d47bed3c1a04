"""What hpc-amp writes into a batch script's header is what the scheduler reads from it."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hpc_amp.schedulers.slurm.scheduler import file_pattern, quote_directive


def model_of_sbatch(script: str) -> list[str]:
    """A model of how sbatch finds its options in a script (`src/sbatch/opt.c`), as far as it is
    known: not its code. The scan ends at the first line whose first non-blank is not `#`. In a
    directive, both kinds of quotes group, a backslash escapes everywhere, even in single quotes,
    and `#` outside quotes starts a comment, even in the middle of a word."""
    words: list[str] = []
    for line in script.split("\n"):
        if line.strip() and not line.strip().startswith("#"):
            break
        if line.startswith("#SBATCH"):
            words += _model_words(line.removeprefix("#SBATCH"))
    return words


def _model_words(text: str) -> list[str]:
    words: list[str] = []
    word: str | None = None
    quote = ""
    letters = iter(text)
    for letter in letters:
        if letter == "\\":
            word = (word or "") + next(letters, "")
        elif letter == quote:
            quote = ""
        elif quote:
            word = (word or "") + letter
        elif letter in "'\"":
            quote = letter
            word = word or ""
        elif letter == "#":
            break
        elif letter.isspace():
            if word is not None:
                words.append(word)
            word = None
        else:
            word = (word or "") + letter
    return words if word is None else [*words, word]


# No control characters: nothing can carry them in a line, so the configuration refuses them.
one_line = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=40)
hostile = st.text(st.sampled_from("'\"\\ #$`%a-=,;*~é💥"), max_size=20)


@given(st.one_of(one_line, hostile))
@example("")
@example("-rf")
@example("a\\")
@example("it's \\'quoted\\' # not a comment")
@example("\u00a0\u2028\u3000")
def test_a_quoted_value_reads_back_as_itself(value: str) -> None:
    line = f"--chdir={quote_directive(value)}"

    assert model_of_sbatch(f"#!/bin/bash\n#SBATCH {line}\nsleep 1") == [f"--chdir={value}"]


@given(st.lists(st.one_of(one_line, hostile), max_size=4))
def test_values_do_not_reach_into_each_other(values: list[str]) -> None:
    header = "".join(f"#SBATCH --comment={quote_directive(value)}\n" for value in values)

    assert model_of_sbatch(header) == [f"--comment={value}" for value in values]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("#SBATCH -J x\n\n#SBATCH --late", ["-J", "x", "--late"]),
        ("  # a comment\n#SBATCH -J x # rest\nsleep\n#SBATCH --late", ["-J", "x"]),
        ('#SBATCH a\'b c\'d"e\\"" ', ['ab cde"']),
        ("#SBATCH a#b 'c#d'", ["a"]),
        ("#SBATCH ''", [""]),
    ],
)
def test_the_model_keeps_the_documented_rules(text: str, words: list[str]) -> None:
    assert model_of_sbatch(text) == words


def model_of_file_names(pattern: str) -> str:
    """A model of what sbatch makes of the name of a log file: `%` and a letter, possibly with a
    number between them, is replaced and `%%` is `%`, unless there is a backslash somewhere. Then
    nothing is replaced, and a backslash stands for the character behind it. (sbatch(1) says the
    first half; the second is what Slurm 22.05 does, see tests/cluster/test_hostile.py.)"""
    if "\\" in pattern:
        return re.sub(r"\\(.)", r"\1", pattern, flags=re.DOTALL)
    return re.sub(r"%(\d*[A-Za-z]|%)", lambda match: "%" if match[1] == "%" else "42", pattern)


@given(st.one_of(one_line, hostile))
@example("%j")
@example("%%")
@example("a\\b")
@example("\\%j%%\\\\")
def test_a_log_is_where_it_was_meant_to_be(name: str) -> None:
    path = f"/runs/{name}/logs/job.log"

    assert model_of_file_names(file_pattern(path)) == path


def test_a_plain_log_is_named_as_it_is() -> None:
    assert file_pattern("/a b/logs/job.log") == "/a b/logs/job.log"
