"""The page of a report: what it says, that it needs nothing but itself, and how a real browser
shows it on a desk, on a phone and on paper."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from support.environment import require_program
from support.rank_times import rank_file
from support.studies import make_study, measure, only, read_study, submit_run, write_timing

from hpc_amp.study.analysis import Analysis, analyse
from hpc_amp.study.caveats import Caveat
from hpc_amp.study.folder import KINDS, Kind
from hpc_amp.study.page import to_html
from hpc_amp.study.picture import draw

HOSTILE = "<script>alert(1)</script>\"'&{{ 7 * 7 }}<img src=http://example.org/x>"
# Writes down how the page in each frame looks. Parts of a picture are left to their picture.
LOOK = """
const look = frame => {
  const page = frame.document, root = page.documentElement;
  const all = [...page.querySelectorAll('body *')];
  const own = all.filter(e => e.tagName === 'svg' || !e.closest('svg'));
  const box = e => e.getBoundingClientRect();
  const style = (name, part) => frame.getComputedStyle(page.querySelector(name), part);
  return {
    width: root.clientWidth,
    needed: root.scrollWidth,
    right: Math.max(...own.map(e => box(e).right)),
    loaded: frame.performance.getEntriesByType('resource').map(entry => entry.name),
    pictures: [...page.querySelectorAll('figure')].map(e => [box(e).top, box(e).width]),
    row: style('tbody tr').display,
    titles: style('td', '::before').content,
    font: parseFloat(style('td').fontSize),
  };
};
onload = () => {
  const looks = [...document.querySelectorAll('iframe')].map(e => look(e.contentWindow));
  document.querySelector('pre').textContent = JSON.stringify(looks);
};
"""


class Page(HTMLParser):
    """Everything in a page that could refer to something, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.attributes if key == name]


def analysed(folder: Path, **changes: Any) -> Analysis:
    """Strong and weak scaling on 1 to 16 nodes, with one run that failed."""
    study = make_study(folder, kind="both", nodes=(1, 2, 4, 16), repeats=2)
    for kind in KINDS:
        for nodes in (1, 2, 4):
            for repeat in (1, 2):
                seconds = 0.1 * (0.05 + 0.95 / nodes) if kind == "strong" else 0.1
                measure(study, kind, nodes, repeat, seconds * (1 + 0.01 * repeat), **changes)
    submit_run(study, "strong", 16, 1, state="failed")
    return analyse(read_study(study))


def drawn(analysis: Analysis) -> dict[Kind, bytes]:
    with only("svg"):
        return {kind: draw(kind, [analysis])["svg"] for kind in KINDS}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    return analysed(tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def pictures(plain: Analysis) -> dict[Kind, bytes]:
    return drawn(plain)


@pytest.fixture(scope="module")
def html(plain: Analysis, pictures: dict[Kind, bytes]) -> str:
    return to_html([plain], pictures)


def test_it_refers_to_nothing_outside(html: str) -> None:
    page = Page(html)
    assert not {"script", "link", "img", "iframe", "object", "embed", "base"} & set(page.tags)
    names = {name for name, _ in page.attributes}
    assert not names & {"src", "srcset", "action", "data", "poster", "background"}
    assert not {name for name in names if name.startswith("on")}
    links = page.values("href") + page.values("xlink:href")
    assert links and all(link.startswith("#") for link in links)
    assert {url[:1] for url in re.findall(r"url\(([^)]*)\)", html)} == {"#"}
    assert "@import" not in html
    # The only addresses are names of XML dialects.
    assert set(re.findall(r'https?://[^"\s<>]+', html)) == {
        "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink",
    }  # fmt: skip


def test_identifiers_are_unique_and_all_references_lead_somewhere(html: str) -> None:
    page = Page(html)
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    used = {link[1:] for link in page.values("xlink:href") + page.values("href")}
    used |= set(re.findall(r"url\(#([^)]+)\)", html))
    assert used <= set(ids)
    assert any(name.startswith("strong-") for name in used)
    assert any(name.startswith("weak-") for name in used)


def test_it_says_what_the_terminal_says(html: str) -> None:
    text = " ".join(Page(html).text.split())
    for said in (
        "cifar: scaling study", "12 of 16 runs measured", "synthetic data",
        "Amdahl: serial fraction 5.0 ± ", "incomplete: strong, 16 nodes: 0 of 2 runs measured",
        "strong-n0016-r01failedout of memory",
    ):  # fmt: skip
        assert said in text


def test_what_was_not_measured_is_no_zero_in_a_bar(tmp_path: Path) -> None:
    folder = make_study(tmp_path, nodes=(1,), repeats=1)
    measure(folder, "strong", 1, 1, 0.1, communication=None)

    page = to_html([analyse(read_study(folder))], {})

    assert 'aria-label="1 node: compute 98 %, communication -, data wait 2 %"' in page


def test_hostile_names_are_text(tmp_path: Path) -> None:
    analysis = analysed(tmp_path, device=HOSTILE, host=HOSTILE)
    page = Page(to_html([analysis], drawn(analysis)))
    assert not {"script", "img"} & set(page.tags)
    assert HOSTILE in page.text


def test_a_slow_rank_on_a_hostile_host(tmp_path: Path) -> None:
    study = make_study(tmp_path, nodes=(1,), repeats=1)
    run_dir = submit_run(study, "strong", 1, 1)
    ranks = [rank_file(rank, 1, [1.0] * 30, host=HOSTILE) for rank in range(4)]
    ranks[2]["communication"] = [0.0] * 30
    write_timing(run_dir, ranks)
    html = to_html([analyse(read_study(study))], {}, "no picture <b>")
    page = Page(html)
    assert not {"script", "img", "b"} & set(page.tags)
    assert f"+9 %: 2 on {HOSTILE}" in page.text
    assert "no picture <b>" in page.text


# ---- a real browser ------------------------------------------------------------------------------


def browse(folder: Path, *options: str) -> str:
    """What headless Chromium writes; it reaches no host."""
    require_program("chromium")
    command = [
        "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        "--allow-file-access-from-files", f"--user-data-dir={folder / 'profile'}",
        "--host-resolver-rules=MAP * ~NOTFOUND", *options,
    ]  # fmt: skip
    result = subprocess.run(command, text=True, capture_output=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


WIDTHS = (320, 360, 768, 1280)


@pytest.fixture(scope="module")
def looks(tmp_path_factory: pytest.TempPathFactory, html: str) -> dict[int | str, dict[str, Any]]:
    """Facts about the page in windows of so many pixels, and about one with `long names` on a
    phone. The windows are frames, since a window of headless Chromium is never narrower than 500,
    and all are in one page: starting a browser takes a second."""
    folder = tmp_path_factory.mktemp("browser")
    (folder / "page.html").write_text(html)
    long = analysed(folder, device="x" * 400)
    (folder / "long.html").write_text(to_html([long], drawn(long)))
    frames = [f"<iframe width={width} height=800 src=page.html></iframe>" for width in WIDTHS]
    frames.append("<iframe width=360 height=800 src=long.html></iframe>")
    text = f"{''.join(frames)}<pre></pre><script>{LOOK}</script>"
    (folder / "frames.html").write_text(text)
    dumped = browse(folder, "--window-size=1600,1000", "--dump-dom", f"file://{folder}/frames.html")
    found = re.search(r"<pre>(\[.*\])</pre>", dumped)
    assert found, dumped[-2000:]
    facts = json.loads(found[1].replace("&quot;", '"'))
    return dict(zip((*WIDTHS, "long names"), facts, strict=True))


@pytest.mark.parametrize("width", WIDTHS)
def test_it_fits_every_screen(looks: dict[int | str, dict[str, Any]], width: int) -> None:
    facts = looks[width]
    assert facts["width"] == width
    assert facts["needed"] <= width
    assert facts["right"] <= width
    assert facts["loaded"] == []
    assert facts["font"] >= 12
    (first_top, first_width), (second_top, second_width) = facts["pictures"]
    assert (first_top == second_top) == (width >= 768)
    assert min(first_width, second_width) > 0.4 * width


def test_rows_are_cards_on_a_phone(looks: dict[int | str, dict[str, Any]]) -> None:
    facts = looks[360]
    assert (facts["row"], facts["titles"]) == ("grid", '"nodes"')
    facts = looks[1280]
    assert (facts["row"], facts["titles"]) == ("table-row", "none")


def test_long_names_do_not_break_a_phone(looks: dict[int | str, dict[str, Any]]) -> None:
    facts = looks["long names"]
    assert facts["needed"] <= 360
    assert facts["right"] <= 360


def printed(folder: Path, html: str) -> list[str]:
    """The lines on paper. A new page begins with a form feed."""
    require_program("pdftotext")
    (folder / "report.html").write_text(html)
    pdf = folder / "report.pdf"
    address = f"file://{folder}/report.html"
    browse(folder, "--no-pdf-header-footer", f"--print-to-pdf={pdf}", address)
    command = ["pdftotext", "-layout", pdf, "-"]
    return subprocess.run(command, check=True, text=True, capture_output=True).stdout.split("\n")


@pytest.fixture(scope="module")
def paper(
    tmp_path_factory: pytest.TempPathFactory, plain: Analysis, pictures: dict[Kind, bytes]
) -> list[str]:
    """The lines of the page with many warnings."""
    many = tuple(Caveat("noisy", f"number {number}") for number in range(40))
    page = to_html([replace(plain, caveats=many)], pictures)
    return printed(tmp_path_factory.mktemp("paper"), page)


def test_many_warnings_leave_no_page_half_empty(paper: list[str]) -> None:
    first, *others = "\n".join(paper).split("\f")
    assert "number 5\n" in first
    assert "number 39\n" in "".join(others)


def test_tables_stay_tables_on_paper(paper: list[str]) -> None:
    lines = [" ".join(line.split()) for line in paper]
    assert "nodes ranks runs step ms middle half samples/s speedup efficiency" in lines
    assert "nodes compute communication data wait slowest rank" in lines
    assert "4 16 2/2 29.2 29.0-29.3 17,546 3.48 87.0 ± 7.7 %" in lines
