"""The reader of shell scripts: commands, who expands what, comments, here-documents."""

from __future__ import annotations

import pytest

from hpc_amp.lint.shell import read_shell


def words(text: str) -> list[list[str]]:
    return [[word.text for word in command.words] for command in read_shell(text).commands]


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        ("a b;c&&d|e\n", [["a", "b"], ["c"], ["d"], ["e"]]),
        ("a \\\n  b # c\nd", [["a", "b"], ["d"]]),
        ("if a; then b; else c; fi", [["a"], ["b"], ["c"], ["fi"]]),
        ("a 'b c' \"d $x\" e\\ f", [["a", "b c", "d $x", "e f"]]),
        ("x=$(a b) c `d`", [["a", "b"], ["d"], ["x=$(a b)", "c", "`d`"]]),
        ("a=(b 'c d' # e\n f)\ng", [["a=(b c d f)"], ["g"]]),
        ("a > b 2>&1 <c; d &>e", [["a"], ["d"]]),
        ("((a << 2)); b", [["b"]]),
        ("a <<< 'b' c", [["a", "c"]]),
        ("a <(b c) d", [["b", "c"], ["a", "<(b c)", "d"]]),
        ("echo ${a:-'b c'} $((1 + (2))) ${#x[@]}",
         [["echo", "${a:-'b c'}", "$((1 + (2)))", "${#x[@]}"]]),
        ("a#b #c", [["a#b"]]),
        ("f() { a; }; function g { b; }", [["a"], ["b"]]),
        ("a 'unclosed\n b", [["a", "unclosed\n b"]]),
    ],
)  # fmt: skip
def test_commands(text: str, commands: list[list[str]]) -> None:
    assert words(text) == commands


def test_only_what_the_shell_expands_now_is_live() -> None:
    (command,) = read_shell('a \'$b\' "$c" \\$d "\\$e" $f').commands

    assert [word.text for word in command.words] == ["a", "$b", "$c", "$d", "$e", "$f"]
    assert ["$" in word.live for word in command.words] == [False, False, True, False, False, True]


def test_here_documents_are_no_commands() -> None:
    shell = read_shell("cat > x <<EOF\na $b\n#SBATCH\nEOF\ncat <<-'E' | c\n\t$d\n\tE\n# e\nf\n")

    assert [[word.text for word in one.words] for one in shell.commands] == [
        ["cat"],
        ["cat"],
        ["c"],
        ["f"],
    ]
    first, second = shell.commands[0].heredocs[0], shell.commands[1].heredocs[0]
    assert (first.text, first.live, first.line) == ("a $b\n#SBATCH", True, 2)
    assert (second.text, second.live, second.line) == ("\t$d", False, 6)
    assert [(comment.line, comment.text) for comment in shell.comments] == [(8, "# e")]


def test_lines_functions_background_and_depth() -> None:
    shell = read_shell("a\nf() {\n  b $(c) &\n}\nd\n")

    found = [
        (one.words[0].text, one.line, one.function, one.background, one.depth)
        for one in shell.commands
    ]
    assert found == [
        ("a", 1, None, False, 0),
        ("c", 3, None, False, 1),
        ("b", 3, "f", True, 0),
        ("d", 5, None, False, 0),
    ]  # fmt: skip


def test_exports_and_assignments() -> None:
    one, two, three = read_shell("A=1 export B=2 C\ndeclare -x D=3\nE=4 run F=5\n").commands

    assert ([name for name, _ in one.assignments], one.exported) == (["A", "B"], {"B", "C"})
    assert two.exported == {"D"}
    assert ([name for name, _ in three.assignments], three.exported) == (["E"], set())
    assert three.program[0].text == "run"
