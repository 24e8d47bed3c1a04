"""The paths through a function, along which the order of calls is judged."""

from __future__ import annotations

from textwrap import indent

import libcst as cst
import pytest

from hpc_amp.migrate.paths import Paths, TooManyPaths
from hpc_amp.migrate.script import SourceScript


def paths(body: str) -> list[str]:
    """Each path as the names of the functions that it calls, in order; `;` ends a turn of a loop.
    Calls of functions with small names matter; `use()` is possible only where `ready` is true."""
    script = SourceScript("def f():\n" + indent(body, "    "), "x.py")
    function = script.all(cst.FunctionDef)[0]

    def implied(call: cst.Call) -> dict[str, bool]:
        return {"ready": True} if script.code(call.func) == "use" else {}

    found = Paths(script, lambda call: script.code(call.func).islower(), implied).through(function)
    return sorted(
        " ".join(script.code(one.func) if isinstance(one, cst.Call) else ";" for one in path)
        for path in found
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("a()\nB()\nc()\n", ["a c"]),
        ("if x:\n    a()\nelse:\n    b()\nc()\n", ["a c", "b c"]),
        ("if x:\n    a()\nelif y:\n    b()\n", ["", "a", "b"]),
        ("if x:\n    A()\nc()\n", ["c"]),
        ("if x:\n    a()\nif x:\n    b()\n", ["", "a b"]),
        ("if x:\n    a()\nif not x:\n    b()\n", ["a", "b"]),
        ("if x is None:\n    a()\nif x is not None:\n    b()\n", ["a", "b"]),
        ("if x and y:\n    a()\nif y:\n    b()\n", ["", "a b", "b"]),
        ("if x or y:\n    pass\nif not (x or y):\n    a()\n", ["", "a"]),
        ("if ready:\n    a()\nuse()\n", ["a use"]),
        ("if a():\n    b()\n", ["a", "a b"]),
        ("a()\nif x:\n    b()\n    return\nc()\n", ["a b", "a c"]),
        ("if x:\n    a()\n    raise E\nb()\n", ["a", "b"]),
        ("for x in a():\n    b()\nc()\n", ["a b ; c"]),
        ("while a():\n    b()\n", ["a b ;"]),
        (
            "for x in y:\n    if x:\n        a()\n        continue\n    b()\nc()\n",
            ["a ; c", "b ; c"],
        ),
        ("for x in y:\n    if x:\n        a()\n        break\nc()\n", ["; c", "a ; c"]),
        ("for x in y:\n    if x:\n        a()\n        return\nc()\n", ["; c", "a"]),
        ("with a() as x, b():\n    c()\n", ["a b c"]),
        ("try:\n    a()\nexcept E:\n    b()\nelse:\n    c()\nfinally:\n    d()\n", ["a c d"]),
        ("match x:\n    case 1:\n        a()\n    case _:\n        b()\n", ["a", "b"]),
        ("def g():\n    a()\nb()\n", ["b"]),
        ("if x: a(); b()\n", ["", "a b"]),
    ],
)
def test_paths(body: str, expected: list[str]) -> None:
    assert paths(body) == expected


def test_too_many_are_given_up() -> None:
    with pytest.raises(TooManyPaths):
        paths("".join(f"if x{number}:\n    a()\n" for number in range(9)))
    assert len(paths("".join(f"if x{number}:\n    a()\n" for number in range(8)))) == 256
