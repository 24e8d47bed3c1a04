"""Text with units to numbers."""

import pytest

from hpc_amp.config.units import (
    Interval,
    format_duration,
    parse_duration,
    parse_interval,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("01:00:00", 3600),
        ("1:2:3", 3723),
        ("100:00:00", 360000),
        ("2-00:00:00", 172800),
        ("90m", 5400),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("1.5h", 5400),
        ("45s", 45),
        ("2d", 172800),
    ],
)
def test_durations(text, seconds):
    assert parse_duration(text) == seconds
    assert parse_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize("text", ["", "90", "5:30", "1:60:00", "-1m", "m", "1w", "9" * 400 + "d"])
def test_no_durations(text):
    with pytest.raises(ValueError) as caught:
        parse_duration(text)
    assert str(caught.value) == (
        f'{text!r} is not a duration: write it with a unit, such as "01:30:00", 90m or 1h30m'
    )


@pytest.mark.parametrize("text", ["0s", "00:00:00", "0.4s"])
def test_durations_of_nothing(text):
    with pytest.raises(ValueError, match=f"'{text}' is less than a second"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("64GiB", 2**36), ("1 KiB", 1024), ("500MB", 500 * 10**6), ("0.5KiB", 512), ("7B", 7)],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["64", "64G", "GiB", "-1GiB", "9" * 400 + "TB"])
def test_no_sizes(text):
    with pytest.raises(ValueError) as caught:
        parse_size(text)
    assert str(caught.value) == (
        f"{text!r} is not a size: write it with a unit, such as 64GiB or 500MB"
    )


@pytest.mark.parametrize("text", ["0GiB", "0.1B"])
def test_sizes_of_nothing(text):
    with pytest.raises(ValueError, match=f"'{text}' is less than a byte"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "interval"),
    [
        ("5m", Interval(300, "seconds")),
        ("01:00:00", Interval(3600, "seconds")),
        ("200steps", Interval(200, "steps")),
        ("1 step", Interval(1, "steps")),
        ("2epochs", Interval(2, "epochs")),
    ],
)
def test_intervals(text, interval):
    assert parse_interval(text) == interval


@pytest.mark.parametrize("text", ["5", "often", "1.5steps", "-1steps"])
def test_no_intervals(text):
    with pytest.raises(ValueError) as caught:
        parse_interval(text)
    assert str(caught.value) == (
        f"{text!r} is not an interval: write 5m, 01:00:00, 200steps or 1epoch"
    )


def test_an_interval_of_nothing():
    with pytest.raises(ValueError, match="'0steps' must be at least one"):
        parse_interval("0steps")
