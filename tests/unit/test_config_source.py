"""YAML files as trees: every line known, every failure one line."""

import re
from pathlib import Path

import pytest
import yaml

from hpc_amp.config import source
from hpc_amp.config.source import parse, read_file
from hpc_amp.config.tree import Items, MappingNode, Scalar
from hpc_amp.errors import ConfigError


def parsed(text):
    return parse(text, lambda line: f"f:{line}")


def error_of(text):
    with pytest.raises(ConfigError) as caught:
        parsed(text)
    return str(caught.value)


def test_every_key_and_item_knows_its_line():
    tree = parsed("a:\n  b: 1\n  c:\n    - x\n    - y\n")
    assert tree.where == "f:1"
    assert tree.entries["a"].where == "f:1"
    assert tree.entries["a"].entries["b"] == Scalar("1", "f:2")
    assert tree.entries["a"].entries["c"] == Items((Scalar("x", "f:4"), Scalar("y", "f:5")), "f:3")


@pytest.mark.parametrize(
    ("text", "scalar"),
    [
        ("01:00:00", Scalar("01:00:00", "f:1")),
        ("no", Scalar("no", "f:1")),
        ("1e-3", Scalar("1e-3", "f:1")),
        ("'3'", Scalar("3", "f:1", quoted=True)),
        ('"a\\tb"', Scalar("a\tb", "f:1", quoted=True)),
        ("|\n  a\n  b\n", Scalar("a\nb\n", "f:1", quoted=True)),
        ("2024-01-31", Scalar("2024-01-31", "f:1")),
    ],
)
def test_scalars_keep_their_source_text(text, scalar):
    assert parsed(f"a: {text}").entries["a"] == scalar


def test_an_alias_is_the_value_of_its_anchor_at_the_line_of_its_own_key():
    tree = parsed("a: &x {b: 1}\nc: *x\n")
    assert tree.entries["c"] == MappingNode({"b": Scalar("1", "f:1")}, "f:2")


def test_merge_keys_fill_in_what_is_not_written():
    tree = parsed("a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc:\n  z: 3\n  <<: [*a, *b]\n")
    assert {name: node.text for name, node in tree.entries["c"].entries.items()} == {
        "x": "1",
        "y": "1",
        "z": "3",
    }


def test_aliases_of_aliases_cost_nothing():
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 40)]
    assert len(parsed("\n".join(lines)).entries) == 40


@pytest.mark.parametrize("text", ["", "# only a comment\n", "\n\n"])
def test_nothing_is_no_tree(text):
    assert parsed(text) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "f:3: the key 'a' is here for the second time, after f:1; "
         "keep one of them"),
        ("a: &a {b: 1}\n<<: *a\n<<: *a\n", "f:3: the key '<<' is here for the second time, after "
         "f:2; keep one of them"),
        ("a: 1\nb: !!int '2'\n", "f:2: the tag '!!int' is not understood; remove it"),
        ("a: !include x\n", "f:1: the tag '!include' is not understood; remove it"),
        ("a: &x [*x]\n", "f:1: an alias (*) stands inside its own anchor (&)"),
        ("? [a]\n: 1\n", "f:1: a key must be plain text; quote a text with brackets"),
        ("a: 1\n<<: 2\n", "f:2: << takes mappings only; write <<: *name_of_an_anchor"),
        ("a: 1\nb: \x07\n", "f:2: the character '\\x07' may not stand in YAML"),
        ("a: b: c\n", "f:1: not valid YAML: mapping values are not allowed in this context; "
         "quote a text that holds ': ', and check the indentation"),
        ("a:\n\tb: 1\n", "f:2: not valid YAML: while scanning for the next token, found character "
         "that cannot start any token; indent with spaces, not tabs, and quote a text that starts "
         "with '@', '%' or '`'"),
        ("a: 1\nb: [x, y\nc: 2\nd: 3\n", "f:2: not valid YAML: while parsing a flow sequence, did "
         "not find expected ',' or ']'; close the bracket, and quote a text that holds '[', ']', "
         "'{', '}' or ','"),
        ("a: 1\nb: 'x\nc: 2\n", "f:2: not valid YAML: while scanning a quoted scalar, found "
         "unexpected end of stream; close the quotes"),
        ("a:\n  b: 1\n c: 2\n", "f:3: not valid YAML: while parsing a block mapping, did not find "
         "expected key; check that the indentation fits the lines above, and quote a text that "
         "starts with '{' or '['"),
        ("a: 1\nb\n", "f:2: not valid YAML: while scanning a simple key, could not find expected "
         "':'; write 'key: value', with a space after the colon"),
        ("a: *x\n", "f:1: not valid YAML: found undefined alias; quote a text that starts with "
         "'*'"),
        ('a: "\\d"\n', "f:1: not valid YAML: while parsing a quoted scalar, found unknown escape "
         "character; write the text in single quotes to keep its backslashes"),
        ("a: 1\n---\nb: 2\n", "f:2: not valid YAML: but found another document; keep one document: "
         "remove the line '---' and what does not belong"),
        ("[" * 60 + "]" * 60, "f:1: nested more than 50 levels deep"),
    ],
)  # fmt: skip
def test_errors_name_the_line_and_what_to_do(text, message):
    assert error_of(text) == message


# libyaml refuses more than 1,000 levels. A longer line costs the loader in Python a second.
@pytest.mark.parametrize("text", ["[" * 1010, "- " * 5000, "{a: " * 3000, '"\\UFFFFFFFF"'])
@pytest.mark.parametrize("libyaml", [True, False])
def test_hostile_yaml_is_one_line_with_and_without_libyaml(text, libyaml, monkeypatch):
    if not libyaml:
        names = ("yaml_implicit_resolvers", "DEFAULT_SCALAR_TAG", "DEFAULT_SEQUENCE_TAG",
                 "DEFAULT_MAPPING_TAG")  # fmt: skip
        pure = {name: getattr(source._Loader, name) for name in names}
        monkeypatch.setattr(source, "_Loader", type("Pure", (yaml.SafeLoader,), pure))
        assert parsed("a: 01:00:00").entries["a"] == Scalar("01:00:00", "f:1")
    message = error_of(text)
    assert re.match(r"f:1: (not valid YAML|nested)", message) and "\n" not in message


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_text_is_as_given_and_a_byte_order_mark_is_no_part_of_it(folder):
    Path("a.yaml").write_bytes(b"\xef\xbb\xbfname: x  # \xc3\xa9\r\n")
    text, tree = read_file(Path("a.yaml"), "job file")
    assert text == "name: x  # é\r\n"
    assert tree.entries["name"] == Scalar("x", "a.yaml:1")
    assert tree.where == "a.yaml"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "a.yaml: this job file is empty; write keys, such as name: my_run"),
        (b"---\n", "a.yaml: this job file is empty; write keys, such as name: my_run"),
        (b"- a\n", "a.yaml: this is not a job file; write keys, such as name: my_run"),
        (b"hello\n", "a.yaml: this is not a job file; write keys, such as name: my_run"),
        (b"a: \xff\n", "a.yaml: byte 3 is not UTF-8 text; is this a job file? If so, save it as "
         "UTF-8"),
        (b"a: [\n", "a.yaml:2: not valid YAML: while parsing a flow node, did not find expected "
         "node content; write a value here, or close the bracket"),
    ],
)  # fmt: skip
def test_files_that_are_not_job_files(folder, content, message):
    Path("a.yaml").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_file(Path("a.yaml"), "job file")
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("cifar.yaml", "cifar.yaml: there is no such job file; did you mean cifar10.yaml?"),
        ("cifar10", "cifar10: there is no such job file; did you mean cifar10.yaml?"),
        ("other.yaml", "other.yaml: there is no such job file; check the path"),
        ("no/x.yaml", "no/x.yaml: there is no such job file; there is no folder no either; check "
         "the path"),
        ("sub", "sub: this is a folder, not a job file; name a file in it"),
        ("cifar10.yaml/x", "cifar10.yaml/x: cannot read this job file: Not a directory"),
        ("a\0b", "a\0b: cannot read this job file: embedded null byte"),
    ],
)  # fmt: skip
def test_paths_that_lead_nowhere(folder, path, message):
    Path("cifar10.yaml").write_text("name: x")
    Path("sub").mkdir()
    with pytest.raises(ConfigError) as caught:
        read_file(Path(path), "job file")
    assert str(caught.value) == message
    assert caught.value.exit_code == 2
