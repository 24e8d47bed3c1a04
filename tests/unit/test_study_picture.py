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
from support.studies import make_study, measure, only, read_study, submit_run

from hpc_amp.study.analysis import Analysis, analyse
from hpc_amp.study.picture import draw

BLUE, VERMILLION = (0, 114, 178), (213, 94, 0)
Pictures = dict[str, bytes]


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
    counted = Image.open(io.BytesIO(png)).convert("RGB").getcolors(2**16)
    assert counted is not None
    return {colour for _, colour in counted}


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    return analysed(tmp_path_factory.mktemp("one"))


@pytest.fixture(scope="module")
def pictures(one: Analysis) -> Pictures:
    """Those of the study `one`."""
    return draw("strong", [one])


def test_a_png_and_an_svg(one: Analysis, pictures: Pictures) -> None:
    image = Image.open(io.BytesIO(pictures["png"]))
    assert image.width in (919, 920)  # 4.6 inches of 200 dots, rounded by matplotlib
    assert BLUE in colours(pictures["png"])
    root = ET.fromstring(pictures["svg"])
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert draw("weak", [one]) == {}


def test_a_picture_says_itself_on_which_data(tmp_path: Path, pictures: Pictures) -> None:
    """It goes into a proposal without the page around it. Letters are paths: what can be seen is
    that they are others."""
    with only("svg"):
        made_up = draw("strong", [analysed(tmp_path, data="SYNTHETIC")])
    assert made_up["svg"] != pictures["svg"]


def test_the_same_study_gives_the_same_bytes_whatever_the_settings_of_the_user_are(
    one: Analysis, pictures: Pictures
) -> None:
    import matplotlib

    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "text.usetex": True}):
        assert draw("strong", [one]) == pictures


def test_two_studies_have_two_colours_and_two_markers(
    tmp_path: Path, one: Analysis, pictures: Pictures
) -> None:
    with only("png", "svg"):
        both = draw("strong", [one, analysed(tmp_path, "bare", 0.5)])
    assert {BLUE, VERMILLION} <= colours(both["png"])
    assert VERMILLION not in colours(pictures["png"])
    # The markers of a series are one path that is used again and again.
    used = re.findall(rb'<use xlink:href="#(m[0-9a-f]+)"', both["svg"])
    assert len(set(used)) >= 2


@pytest.mark.parametrize("measured", [(1,), (4,), (1, 8)])
def test_few_points_can_be_drawn(tmp_path: Path, measured: tuple[int, ...]) -> None:
    study = make_study(tmp_path, nodes=(1, 4, 8), repeats=2)
    for nodes in measured:
        measure(study, "strong", nodes, 1, 0.1 / nodes, gpus_per_node=1)
        submit_run(study, "strong", nodes, 2, state="failed")
    with only("png"):
        pictures = draw("strong", [analyse(read_study(study))])
    assert BLUE in colours(pictures["png"])


@pytest.mark.parametrize("slower", [1, 2, 3.7, 7.9, 8.1, 30])
def test_an_axis_of_throughput_has_three_numbers_at_least(tmp_path: Path, slower: float) -> None:
    """Numbers 1, 2 and 5 alone leave one between 600 and 1,300 images a second."""
    study = make_study(tmp_path, nodes=(1, 2), repeats=1)
    for nodes in (1, 2):
        seconds = 0.5 * nodes ** (math.log2(slower) if slower > 1 else 0)
        measure(study, "strong", nodes, 1, seconds, gpus_per_node=1)
    with only("svg"):
        svg = draw("strong", [analyse(read_study(study))])["svg"].decode()
    first_axes = svg[svg.index('id="axes_1"') : svg.index('id="axes_2"')]
    ticks = re.findall(r'<g id="ytick_\d+">(.*?)\n    </g>', first_axes, re.DOTALL)
    assert sum('id="text_' in tick for tick in ticks) >= 3


def test_throughput_that_falls_can_be_drawn(tmp_path: Path) -> None:
    study = make_study(tmp_path, nodes=(1, 2, 4, 8, 16, 24, 32, 48, 64), repeats=1)
    for nodes in (1, 2, 4, 8, 16, 24, 32, 48, 64):
        measure(study, "strong", nodes, 1, 0.01 * nodes**2, gpus_per_node=1)
    with only("png"):
        pictures = draw("strong", [analyse(read_study(study))])
    assert BLUE in colours(pictures["png"])


def test_names_are_not_mathematics(one: Analysis) -> None:
    """A pair of dollar signs would be; a device or a data set may be called anything."""
    campaign = replace(one.study.campaign, name="$\\frac{1}{$ a_b")
    named = replace(one, study=replace(one.study, campaign=campaign))
    with only("png"):
        pictures = draw("strong", [named])
    assert BLUE in colours(pictures["png"])
