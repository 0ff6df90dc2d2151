"""Pages about runs in a real browser: pointer, keyboard, folding, links, a phone's width, paper, and without script."""

import pytest

from coterie.report.runs import write_report
from coterie.runs.folder import StoredRun


@pytest.fixture(scope="module")
def report(runs, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(path, "Four methods", [StoredRun.read(one) for one in sorted(runs.iterdir()) if one.is_dir()])
    return path


WIDTHS = pytest.mark.parametrize("width", [360, 1200])


@WIDTHS
def test_a_page_fits_its_window_asks_for_nothing_and_has_no_error(show, report, width):
    shown = show(report, width)
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= width
    assert [address for address in shown.asked if not address.startswith(("file:", "data:"))] == []
    assert shown.errors == []


@WIDTHS
def test_the_verdict_comes_before_everything_else(show, report, width):
    page = show(report, width).page
    tops = [page.locator(name).first.bounding_box()["y"] for name in (".verdict", "figure", "nav", "table")]
    assert tops == sorted(tops)
    assert tops[0] < 300


@WIDTHS
def test_a_pointer_is_told_the_value_that_it_is_at(show, report, width):
    page = show(report, width).page
    figure = page.locator("figure").first
    figure.scroll_into_view_if_needed()
    x, y, _, said = page.evaluate("JSON.parse(document.querySelector('figure').dataset.found).points[0]")
    drawn = figure.locator("svg")
    box = drawn.bounding_box()
    drawn.hover(position={"x": x * box["width"], "y": y * box["height"]})
    tip = figure.locator(".tip")
    assert tip.is_visible()
    assert said in tip.text_content()
    inside, outside = tip.bounding_box(), figure.bounding_box()
    assert inside["x"] >= outside["x"] - 1
    assert inside["x"] + inside["width"] <= outside["x"] + outside["width"] + 1
    page.locator("h1").hover()
    assert not tip.is_visible()


def curves_of(page, name):
    """Whether the parts of a name are visible, in all figures that have it in a legend."""
    return page.evaluate(
        """name => [...document.querySelectorAll("figure[data-found]")].flatMap(figure => {
          const found = JSON.parse(figure.dataset.found), svg = figure.querySelector("svg");
          return Object.entries(found.parts).filter(([, number]) => found.names[number] === name)
            .map(([id]) => getComputedStyle(svg.getElementById(id)).visibility);
        })""",
        name,
    )


def test_a_method_is_switched_off_and_on_in_all_figures_by_pointer_and_by_keyboard(show, report):
    page = show(report).page
    key = page.locator("#figures [role=button][aria-label='show autocfl']").first
    assert len(curves_of(page, "autocfl")) > 2
    assert set(curves_of(page, "autocfl")) == {"visible"}
    key.scroll_into_view_if_needed()
    key.click()
    assert set(curves_of(page, "autocfl")) == {"hidden"}
    assert set(curves_of(page, "fedavg")) == {"visible"}
    pressed = [one.get_attribute("aria-pressed") for one in page.locator("[aria-label='show autocfl']").all()]
    assert set(pressed) == {"false"}
    key.focus()
    page.keyboard.press("Enter")
    assert set(curves_of(page, "autocfl")) == {"visible"}


def test_details_are_folded_and_a_link_unfolds_them(show, report):
    page = show(report).page
    part = page.locator("#every-client details.part")
    assert part.get_attribute("open") is None
    page.locator("nav a", has_text="Every client").click()
    page.wait_for_function("document.querySelector('#every-client details.part').open")
    assert page.locator("#every-client table").first.is_visible()


def test_details_unfold_by_keyboard_and_a_table_is_sorted_by_it(show, report):
    page = show(report).page
    page.locator("#every-client summary").first.focus()
    page.keyboard.press("Enter")
    table = page.locator("#every-client table.sortable").first
    header = table.locator("th").nth(1)
    header.focus()
    page.keyboard.press("Enter")
    values = [float(cell.get_attribute("data-value")) for cell in table.locator("tbody td:nth-child(2)").all()]
    assert values == sorted(values, reverse=True)
    assert header.get_attribute("aria-sort") == "descending"


def test_without_script_a_page_is_complete(browser, show, report):
    page = show(report, java_script_enabled=False).page
    assert page.locator("figure svg").count() > 5
    page.locator("#every-client summary").first.click()
    assert page.locator("#every-client table").first.is_visible()


def test_on_paper_everything_is_unfolded(show, report):
    page = show(report).page
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("[...document.querySelectorAll('details')].every(part => part.open)")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(show, report, scheme):
    """The contrast of all text is at least 4.5, as WCAG 2.1 has it for those who see less well."""
    page = show(report, color_scheme=scheme).page
    found = page.evaluate(_CONTRASTS)
    assert len(found) > 50
    assert [one for one in found if one[0] < 4.5] == []


_CONTRASTS = """() => {
  const channels = text => text.match(/[\\d.]+/g).map(Number);
  const linear = v => v / 255 <= .04045 ? v / 255 / 12.92 : ((v / 255 + .055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => .2126 * linear(r) + .7152 * linear(g) + .0722 * linear(b);
  const ground = element => {
    for (let at = element; at; at = at.parentElement) {
      const color = channels(getComputedStyle(at).backgroundColor);
      if (color.length < 4 || color[3] === 1) return color;
    }
    return matchMedia("(prefers-color-scheme: dark)").matches ? [18, 18, 18] : [255, 255, 255];
  };
  const texts = [...document.querySelectorAll("p, td, th, a, h1, h2, summary, figcaption, code")];
  return texts.filter(one => one.textContent.trim() && one.checkVisibility()).map(one => {
    const [a, b] = [light(channels(getComputedStyle(one).color)), light(ground(one))].sort((x, y) => y - x);
    return [(a + .05) / (b + .05), one.tagName, one.textContent.slice(0, 30)];
  });
}"""


def test_everybody_is_told_what_a_figure_shows(show, report):
    page = show(report).page
    for drawn in page.locator("figure svg").all():
        assert len(drawn.get_attribute("aria-label")) > 20
