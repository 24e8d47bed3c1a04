"""The pictures: their form, their sameness, and that they hold what was measured."""

from __future__ import annotations

import io
import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from support.studies import make_study, measure, read_study, submit_run

from hpc_amp.study.analysis import Analysis, analyse
from hpc_amp.study.picture import draw

BLUE, VERMILLION = (0, 114, 178), (213, 94, 0)


def analysed(
    folder: Path, name: str = "cifar", factor: float = 1.0, data: str = "cifar10"
) -> Analysis:
    study = make_study(folder, name=name, nodes=(1, 2, 4, 8), repeats=2)
    for nodes in (1, 2, 4, 8):
        for repeat in (1, 2):
            seconds = factor * 0.1 * (0.05 + 0.95 / nodes) * (1 + 0.01 * repeat)
            measure(study, "strong", nodes, repeat, seconds, gpus_per_node=1, data=data)
    return analyse(read_study(study))


def colours(png: bytes) -> set[object]:
    counted = Image.open(io.BytesIO(png)).convert("RGB").getcolors(2**24)
    assert counted is not None
    return {colour for _, colour in counted}


def test_a_png_and_an_svg(tmp_path: Path) -> None:
    pictures = draw("strong", [analysed(tmp_path)])
    image = Image.open(io.BytesIO(pictures["png"]))
    assert image.width in (919, 920)  # 4.6 inches of 200 dots, rounded by matplotlib
    assert BLUE in colours(pictures["png"])
    root = ET.fromstring(pictures["svg"])
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert draw("weak", [analysed(tmp_path / "other")]) == {}


def test_the_same_study_gives_the_same_bytes(tmp_path: Path) -> None:
    analysis = analysed(tmp_path)
    assert draw("strong", [analysis]) == draw("strong", [analysis])


def test_a_picture_says_itself_on_which_data(tmp_path: Path) -> None:
    """It goes into a proposal without the page around it. Letters are paths: what can be seen is
    that they are others."""
    real = analysed(tmp_path / "real")
    made_up = analysed(tmp_path / "synthetic", data="SYNTHETIC")
    assert draw("strong", [real]) != draw("strong", [made_up])


def test_settings_of_the_user_change_nothing(tmp_path: Path) -> None:
    import matplotlib

    analysis = analysed(tmp_path)
    wanted = draw("strong", [analysis])
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "text.usetex": True}):
        assert draw("strong", [analysis]) == wanted


def test_two_studies_have_two_colours_and_two_markers(tmp_path: Path) -> None:
    one, two = analysed(tmp_path), analysed(tmp_path, "bare", 0.5)
    pictures = draw("strong", [one, two])
    assert {BLUE, VERMILLION} <= colours(pictures["png"])
    assert VERMILLION not in colours(draw("strong", [one])["png"])
    # The markers of a series are one path that is used again and again.
    used = re.findall(rb'<use xlink:href="#(m[0-9a-f]+)"', pictures["svg"])
    assert len(set(used)) >= 2


@pytest.mark.parametrize("measured", [(1,), (4,), (1, 8)])
def test_few_points_can_be_drawn(tmp_path: Path, measured: tuple[int, ...]) -> None:
    study = make_study(tmp_path, nodes=(1, 4, 8), repeats=2)
    for nodes in measured:
        measure(study, "strong", nodes, 1, 0.1 / nodes, gpus_per_node=1)
        submit_run(study, "strong", nodes, 2, state="failed")
    pictures = draw("strong", [analyse(read_study(study))])
    assert BLUE in colours(pictures["png"])


@pytest.mark.parametrize("slower", [1, 2, 3.7, 7.9, 8.1, 30])
def test_an_axis_of_throughput_has_three_numbers_at_least(tmp_path: Path, slower: float) -> None:
    """Numbers 1, 2 and 5 alone leave one between 600 and 1,300 images a second."""
    study = make_study(tmp_path, nodes=(1, 2), repeats=1)
    for nodes in (1, 2):
        seconds = 0.5 * nodes ** (math.log2(slower) if slower > 1 else 0)
        measure(study, "strong", nodes, 1, seconds, gpus_per_node=1)
    svg = draw("strong", [analyse(read_study(study))])["svg"].decode()
    first_axes = svg[svg.index('id="axes_1"') : svg.index('id="axes_2"')]
    ticks = re.findall(r'<g id="ytick_\d+">(.*?)\n    </g>', first_axes, re.DOTALL)
    assert sum('id="text_' in tick for tick in ticks) >= 3


def test_throughput_that_falls_can_be_drawn(tmp_path: Path) -> None:
    study = make_study(tmp_path, nodes=(1, 2, 4, 8, 16, 24, 32, 48, 64), repeats=1)
    for nodes in (1, 2, 4, 8, 16, 24, 32, 48, 64):
        measure(study, "strong", nodes, 1, 0.01 * nodes**2, gpus_per_node=1)
    analysis = analyse(read_study(study))
    assert BLUE in colours(draw("strong", [analysis])["png"])


def test_names_are_not_mathematics(tmp_path: Path) -> None:
    """A pair of dollar signs would be; a device or a data set may be called anything."""
    analysis = analysed(tmp_path)
    campaign = replace(analysis.study.campaign, name="$\\frac{1}{$ a_b")
    named = replace(analysis, study=replace(analysis.study, campaign=campaign))
    assert BLUE in colours(draw("strong", [named])["png"])
