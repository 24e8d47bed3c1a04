"""Which points a command line and a CSV file describe."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_amp.campaigns import ranges
from hpc_amp.campaigns.points import MOST_POINTS, Space, read_space, split_values, with_seeds
from hpc_amp.errors import ConfigError, HpcAmpError, UsageError


def values(space: Space) -> list[tuple[str | None, ...]]:
    return [point.values for point in space.points]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0.1,0.2", ["0.1", "0.2"]),
        ("0.1, 0.2 ", ["0.1", "0.2"]),
        ("one", ["one"]),
        (" as it is ", [" as it is "]),
        ("[0.9,0.99],[0.8,0.9]", ["[0.9,0.99]", "[0.8,0.9]"]),
        ("{name: sgd, lr: [1, 2]},adamw", ["{name: sgd, lr: [1, 2]}", "adamw"]),
        ('"a,b",c', ['"a,b"', "c"]),
        ('"a,b"', ['"a,b"']),
        ('["a]",b],c', ['["a]",b]', "c"]),
        ("it's,fine", ["it's", "fine"]),
        ("a,,b", ["a", "", "b"]),
        ("", [""]),
    ],
)
def test_commas_separate_values_unless_brackets_or_quotes_hold_them(
    text: str, found: list[str]
) -> None:
    assert split_values(text) == found


def test_a_grid_has_every_combination_the_last_key_varying_fastest() -> None:
    space = read_space(["train.optimizer.lr=0.1,0.2", "train.precision=fp16,bf16", "job.nodes=2"])

    assert space.keys == ("train.optimizer.lr", "train.precision")
    assert values(space) == [("0.1", "fp16"), ("0.1", "bf16"), ("0.2", "fp16"), ("0.2", "bf16")]
    assert [point.index for point in space.points] == [0, 1, 2, 3]
    assert space.fixed == ("job.nodes=2",)
    assert space.points[2].settings(space.keys) == [
        "train.optimizer.lr=0.2",
        "train.precision=fp16",
    ]


def test_zip_takes_the_values_one_by_one() -> None:
    space = read_space(["train.seed=1,2,3", "train.epochs=5,6,7"], zipped=True)

    assert values(space) == [("1", "5"), ("2", "6"), ("3", "7")]


@pytest.mark.parametrize("zipped", [False, True])
def test_seeds_repeat_every_setting_one_round_after_the_other(zipped: bool) -> None:
    space = with_seeds(read_space(["a=1,2", "train.seed=3"], zipped=zipped), range(3, 5))
    assert space.keys == ("a", "train.seed")
    assert values(space) == [("1", "3"), ("2", "3"), ("1", "4"), ("2", "4")]
    assert space.fixed == ()
    assert values(with_seeds(read_space([], must_vary=False), [0, 1])) == [("0",), ("1",)]
    with pytest.raises(UsageError, match="2,000,000,000 points"):
        with_seeds(read_space(["a=1,2"]), range(10**9))
    with pytest.raises(UsageError, match="which varies already"):
        with_seeds(read_space(["train.seed=1,2"]), [0, 1])


def test_zip_wants_as_many_values_of_each_key() -> None:
    with pytest.raises(UsageError) as caught:
        read_space(["train.seed=1,2,3", "train.epochs=5,6"], zipped=True)

    assert "train.seed has 3, train.epochs has 2" in str(caught.value)


def test_a_table_is_a_point_a_line_and_an_empty_cell_leaves_the_key_alone(tmp_path: Path) -> None:
    table = tmp_path / "points.csv"
    table.write_text('\ufefftrain.optimizer.lr, train.ema\n0.1,0.9\n\n0.2,\n"[1,2]",0.5\n')

    space = read_space(["train.seed=0,1"], table=table)

    assert space.keys == ("train.optimizer.lr", "train.ema", "train.seed")
    assert values(space) == [
        ("0.1", "0.9", "0"),
        ("0.1", "0.9", "1"),
        ("0.2", None, "0"),
        ("0.2", None, "1"),
        ("[1,2]", "0.5", "0"),
        ("[1,2]", "0.5", "1"),
    ]
    assert space.points[2].where == f"{table}:4"
    assert space.points[2].settings(space.keys) == ["train.optimizer.lr=0.2", "train.seed=0"]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["train.seed=1"], "nothing varies"),
        ([], "nothing varies"),
        (["train.seed=1,,2"], "an empty value"),
        (["train.seed=1,", "2"], "an empty value between the commas; write the values without"),
        (["train.seed=1,2,1"], "the value '1' is given twice"),
        (
            ["train.seed=1,2", "train.seed=3,2"],
            "train.seed is given twice; give it once: train.seed=1,2,3",
        ),
        (["train.seed=0", "a=1,2", "train.seed=1"], "give it once: train.seed=0,1"),
        (["name=a", "name=b"], "name is the same for all points"),
        (["name=a,b"], "name is the same for all points"),
        (["site=slurm,local"], "site is the same for all points"),
        (
            [f"{key}={','.join(map(str, range(300)))}" for key in ("train.seed", "train.epochs")],
            "90,000 points",
        ),
    ],
)
def test_what_is_no_sweep_is_refused(overrides: list[str], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_space(overrides)

    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("train.seed\n", "no points"),
        ("train.seed;train.ema\n1;2\n", ":1: the titles are not separated by commas; write commas"),
        ("train.seed,train.seed\n1,2\n", ":1: the key 'train.seed' is given twice"),
        ("train.seed,\n1,2\n", ":1: a column has no title"),
        ("train.seed,train.ema\n1\n", ":2: 1 values for 2 keys"),
        ("train.seed\n1\n2\n1\n", ":4: this point is equal to point 0"),
        ('train.seed\n"1\n', "is not a CSV file"),
        ("site\nslurm\n", "site is the same for all points"),
    ],
)
def test_a_bad_table_is_refused_at_its_line(tmp_path: Path, text: str, said: str) -> None:
    table = tmp_path / "points.csv"
    table.write_text(text)

    with pytest.raises((UsageError, ConfigError)) as caught:
        read_space([], table=table)

    assert said in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_key_is_in_the_table_or_on_the_command_line(tmp_path: Path) -> None:
    table = tmp_path / "points.csv"
    table.write_text("train.seed\n1\n")
    for override in ("train.seed=2", "train.seed=2,3"):
        with pytest.raises(UsageError, match=r"train\.seed is in .*points\.csv too"):
            read_space([override], table=table)


def test_a_table_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"train.seed\n\xff\xfe\n")

    for table, said in ((tmp_path / "none.csv", "cannot be read"), (binary, "is not a CSV file")):
        with pytest.raises(HpcAmpError) as caught:
            read_space([], table=table)
        assert said in str(caught.value)


def test_a_grid_too_large_is_refused_before_it_is_made() -> None:
    overrides = [f"train.k{key}={','.join(map(str, range(100)))}" for key in range(8)]

    with pytest.raises(UsageError) as caught:
        read_space(overrides)

    assert f"at most {MOST_POINTS:,} are allowed" in str(caught.value)


@given(st.sets(st.integers(0, 9999), min_size=1))
def test_ranges_read_back_what_was_written(numbers: set[int]) -> None:
    ordered = sorted(numbers)

    assert ranges.from_text(ranges.to_text(ordered)) == ordered


def test_ranges_are_short() -> None:
    assert ranges.to_text([0, 1, 2, 3, 7]) == "0-3,7"
    assert ranges.to_bash([0, 1, 2, 3, 7]) == "{0000..0003} 0007"
