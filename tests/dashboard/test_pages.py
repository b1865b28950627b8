"""The page in a real Chromium. Screenshots are kept in build/screenshots."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from leasehold.core.model import WorkerId
from leasehold.core.observing.dashboard.fleet_history import FleetHistory
from leasehold.core.observing.dashboard.fleet_view import judge_fleet, view_fleet
from leasehold.dashboard.recording import Playback
from leasehold.errors import ConfigError
from tests.dashboard.browser import Page, find_chromium, run_browser
from tests.dashboard.running_dashboard import RunningDashboard, run_dashboard, run_playback
from tests.dashboard.sample_fleets import (
    COSTS,
    SETTINGS,
    STEP_MS,
    SampleFleet,
    killed_and_restarted,
    killed_query,
    large_fleet,
    resharded_fleet,
    small_fleet,
    unhealthy_fleet,
    view_after,
    view_at,
)

SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"
# Tiles whose picture covers their figure, or whose text is cut.
CROWDED_TILES = """
[...document.querySelectorAll('.tile')].filter((tile) => {
  const [figure, picture, more] = ['.value', '.spark', '.more'].map((each) => tile.querySelector(each));
  if (more && more.scrollHeight > more.clientHeight + 1) return true;
  if (!figure || !picture) return false;
  const range = document.createRange();
  range.selectNodeContents(figure);
  return range.getBoundingClientRect().right > picture.getBoundingClientRect().left;
}).map((tile) => tile.innerText)
"""
# Tiles whose figure or picture is wider than the tile.
WIDE_FIGURES = """
[...document.querySelectorAll('.tile .value, .tile .spark')].filter((figure) => {
  const range = document.createRange();
  if (figure.matches('.value')) range.selectNodeContents(figure);
  else range.selectNode(figure);
  return range.getBoundingClientRect().right > figure.closest('.tile').getBoundingClientRect().right - 6;
}).map((figure) => figure.closest('.tile').innerText)
"""
# The words of the first sentence in the table that are not cut.
SHOWN_WORDS = """
(() => {
  const box = document.querySelector('#shard-table .row .why .lines');
  const bottom = box.getBoundingClientRect().bottom;
  const range = document.createRange();
  const text = box.firstChild;
  let end = 0;
  while (end < text.length) {
    range.setStart(text, end);
    range.setEnd(text, end + 1);
    if (range.getBoundingClientRect().bottom > bottom + 1) break;
    end += 1;
  }
  return text.data.slice(0, end);
})()
"""
ROWS = "[...document.querySelectorAll('#shard-table .row')]"
ARROW_DOWN, ENTER, ESCAPE, SLASH = ("ArrowDown", 40), ("Enter", 13), ("Escape", 27), ("/", 191)


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("chromium is not installed: `make setup-browser` installs it on Debian")
    with run_browser(chromium) as page:
        yield page


@pytest.fixture
def page(browser: Page) -> Iterator[Page]:
    """A page on which no script may fail, and no policy may be broken."""
    browser.errors.clear()
    yield browser
    browser.leave()
    assert browser.errors == []


@contextmanager
def shown(page: Page, fleet: SampleFleet, steps: int, *, first: int = 0) -> Iterator[RunningDashboard]:
    """Show a fleet as it is now, after some steps."""
    fleet = replace(fleet, start_ms=round(time.time() * 1000) - (steps - 1) * STEP_MS)
    view, history = view_after(fleet, steps, first=first)
    with run_dashboard(view, history) as dashboard:
        page.open(dashboard.url)
        yield dashboard
        page.leave()


def row_texts(page: Page) -> list[str]:
    found: list[str] = page.evaluate(f"{ROWS}.map((row) => row.innerText)")
    return found


def test_three_shards(page: Page) -> None:
    """A small healthy fleet: landmarks, headings, labels, sparklines, light and dark by the button."""
    with shown(page, small_fleet(), 100):
        page.wait_for("document.querySelectorAll('#shard-table .spark path').length >= 6")
        page.screenshot(SCREENSHOTS / "three-shards.png")
        assert len(row_texts(page)) == 3
        tiles = page.evaluate("document.getElementById('tiles').textContent")
        assert "Kinesis calls14/s0.5/s throttled · GetRecords 14/s · ListShards 0.01/s" in tiles
        assert page.evaluate("document.getElementById('attention').innerText").startswith("Nothing.")
        assert page.evaluate("['header', 'main', 'h1'].every((tag) => document.querySelector(tag))")
        unlabelled = page.evaluate(
            "[...document.querySelectorAll('input, select')].filter((e) => e.labels.length === 0).length"
            " + [...document.querySelectorAll('button, th, [role=img]')]"
            ".filter((e) => !e.innerText?.trim() && !e.textContent.trim() && !e.ariaLabel).length"
        )
        assert unlabelled == 0
        assert page.evaluate("document.documentElement.dataset.theme") == "light"
        page.evaluate("document.getElementById('theme').click()")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        page.evaluate("localStorage.clear()")


def test_two_hundred_shards_with_a_reshard_by_keyboard(page: Page) -> None:
    """The family tree, a search, the arrow keys, and the details of a shard."""
    with shown(page, resharded_fleet(), 12):
        page.wait_for("document.querySelectorAll('#family .block').length === 300")
        page.screenshot(SCREENSHOTS / "two-hundred-shards-with-a-reshard.png")
        assert page.evaluate(CROWDED_TILES) == []
        ends = page.evaluate("[...document.querySelectorAll('.who .tail')].map((each) => each.innerText)")
        assert len(set(ends)) == 5, "workers whose names begin alike cannot be told apart"
        assert "88 splits, 4 merges" in page.evaluate("document.getElementById('family-note').textContent")
        page.evaluate("document.getElementById('filter-waiting').click()")
        page.wait_for(f"{ROWS}.length === 8")
        page.evaluate(f"{ROWS}[0].focus()")
        page.press(*ARROW_DOWN)
        page.press(*ENTER)
        page.wait_for("!document.getElementById('detail').hidden")
        assert "it waits until its parent is read to the end" in page.evaluate(
            "document.getElementById('detail').innerText"
        )
        page.press(*ESCAPE)
        page.wait_for("document.getElementById('detail').hidden")
        assert page.evaluate(f"{ROWS}.indexOf(document.activeElement)") == 1
        page.press(*SLASH, text="/")
        assert page.evaluate("document.activeElement.id") == "search"


def test_an_unhealthy_fleet(page: Page) -> None:
    """Each problem has its sentence and its remedy; a new one is announced; markup in a name is only text."""
    fleet = unhealthy_fleet()
    with shown(page, fleet, 40) as dashboard:
        page.wait_for("document.querySelectorAll('#shard-table .spark path').length >= 20")
        page.screenshot(SCREENSHOTS / "unhealthy-fleet.png")
        attention = page.evaluate("document.getElementById('attention').innerText")
        assert "cannot be read: leaseCounter" in attention
        assert "its handler hangs, fails each time" in attention
        assert "Problems: " in page.evaluate("document.getElementById('announce').textContent")
        facts = small_fleet().facts(4)
        leases = tuple(
            replace(lease, owner=WorkerId("<img src=x onerror=\"document.title='owned'\">"), counter=1)
            for lease in facts.after.leases
        )
        facts = replace(
            facts, before=replace(facts.before, leases=leases), after=replace(facts.after, leases=leases)
        )
        judged = judge_fleet(facts, SETTINGS)
        now_ms = round(time.time() * 1000)
        dashboard.publish(view_fleet(facts, judged, FleetHistory(), SETTINGS, costs=COSTS, wall_ms=now_ms))
        page.wait_for(f"document.body.dataset.drawn === '{now_ms}'")
        assert all("<img src=x" in row for row in row_texts(page))
        assert page.evaluate("document.querySelectorAll('img[src=x]').length") == 0
        assert "New problem: " in page.evaluate("document.getElementById('announce').textContent")


def test_a_killed_query_at_1400_pixels(page: Page) -> None:
    """The tile, the filters and the list give the same numbers, and each tile contains its figure."""
    with shown(page, killed_query(), 11) as dashboard:
        page.open(dashboard.url, width=1400)
        page.screenshot(SCREENSHOTS / "killed-query.png")
        why = "document.querySelector('#shard-table .row .why')"
        whole = "its owner spark-deb7d58e209b7dcd is silent for at least 15 s"
        assert page.evaluate(f"{why}.title").startswith(whole)
        assert page.evaluate(f"{why}.innerText").startswith("its owner is silent for at least 15 s")
        end = f"{why}.querySelector('.lines').getBoundingClientRect()"
        assert page.evaluate(SHOWN_WORDS).startswith("its owner is silent for at least 15 s (its last report")
        assert page.evaluate(f"{end}.height") <= 30
        name = "document.querySelector('#worker-table .who .head')"
        assert page.evaluate(f"{name}.clientWidth") > 30, "only the end of the worker's name is visible"
        tile = page.evaluate("document.querySelector('.tile').innerText.split('\\n').filter(Boolean)")
        assert tile == ["Needs attention", "3 problems", "no notices"]
        marks = "[...document.querySelectorAll('#attention .mark')].map((each) => each.ariaLabel)"
        assert page.evaluate(marks) == ["Problem", "Problem"]
        assert page.evaluate("document.getElementById('filter-notice').innerText") == "Notices0"
        assert page.evaluate(WIDE_FIGURES) == []
        tiles = page.evaluate("document.getElementById('tiles').textContent")
        assert "Throughput\u2013no worker is active" in tiles
        assert not any("kB/s" in row for row in row_texts(page))
        page.evaluate(f"{ROWS}[0].click()")
        page.wait_for("document.querySelectorAll('#detail figure .line').length === 2")
        now = "Number(document.querySelector('#detail figure + figure svg').viewBox.baseVal.width) - 1"
        ends = "document.querySelectorAll('#detail figure .line')[{}].getBBox()"
        until = "(({0}).x + ({0}).width)"
        assert page.evaluate(f"{until.format(ends.format(0))} > {now} - 2"), "the lag lasts until now"
        assert page.evaluate(f"{until.format(ends.format(1))} < {now} / 2"), "the throughput is an old one"
        page.press(*ESCAPE)


def test_a_restarted_query_shows_why_nothing_is_lost_or_doubled(page: Page) -> None:
    view, history = killed_and_restarted()
    with run_dashboard(view, history) as dashboard:
        page.open(dashboard.url, width=1400)
        changes = page.evaluate("document.getElementById('changes').innerText")
        assert "is silent: it has sent no heartbeat for at least 15 s" in changes
        assert "is active again" in changes
        assert (
            "A batch is pinned, 40 records up to 5154..28070146: unless it was complete, exactly" in changes
        )
        assert row_texts(page)[0].endswith("\n\u2026\u20609b7dcd reads it, 0.8 s behind")
        page.screenshot(SCREENSHOTS / "restarted-query.png")
        page.evaluate(f"{ROWS}[0].click()")
        page.wait_for("!document.getElementById('detail').hidden")
        page.screenshot(SCREENSHOTS / "restarted-query-shard.png")
        facts = page.evaluate("document.querySelector('#detail dl').innerText")
        assert (
            "Batch in progress\n40 records up to 5154..28070146: pinned, not in the checkpoint yet." in facts
        )
        assert "New lease sessions\n1 since " in facts
        assert "Forced changes of owner\n3 since the checkpoint" in facts
        page.leave()


def test_a_stopped_fleet_has_no_leader_at_the_moment(page: Page) -> None:
    view, history = view_after(killed_query(), 4)
    words = "document.getElementById('mode').textContent + document.getElementById('tiles').textContent"
    with run_dashboard({**view, "leader": None}, history) as dashboard:
        page.open(dashboard.url)
        assert page.evaluate(words).count("no leader at the moment") == 2
        dashboard.publish({**view, "leader": None, "mode": "unknown", "at": view["at"] + 1})
        page.wait_for(f"document.body.dataset.drawn === '{view['at'] + 1}'")
        assert page.evaluate(words).startswith("no worker owns a lease")
        page.leave()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_1400_pixels(page: Page, scheme: str) -> None:
    """Healthy and unhealthy fleets at this width, for the screenshots; no figure is wider than its tile."""
    for name, fleet in (
        ("healthy", small_fleet()),
        ("unhealthy", unhealthy_fleet()),
        ("killed", killed_query()),
    ):
        with shown(page, fleet, 40) as dashboard:
            page.open(dashboard.url, width=1400, scheme=scheme)
            page.wait_for("document.querySelectorAll('#shard-table .spark path').length >= 4")
            page.screenshot(SCREENSHOTS / f"{name}-{scheme}-1400.png")
            assert page.evaluate(WIDE_FIGURES) == []
            assert page.evaluate(CROWDED_TILES) == []


def test_dark(page: Page) -> None:
    """Dark as the system says, with the details of a shard."""
    with shown(page, unhealthy_fleet(), 40) as dashboard:
        page.open(dashboard.url, scheme="dark")
        page.evaluate(f"{ROWS}[0].click()")
        page.wait_for("document.querySelectorAll('#detail figure .line').length === 2")
        page.screenshot(SCREENSHOTS / "dark.png")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_ten_thousand_shards(page: Page) -> None:
    """Only visible rows have elements; a search finds one shard; the last row is reached."""
    with shown(page, large_fleet(), 4, first=3):
        page.screenshot(SCREENSHOTS / "ten-thousand-shards.png")
        assert page.evaluate("document.querySelectorAll('*').length") < 6000
        assert len(row_texts(page)) < 80
        page.evaluate("document.querySelector('#shard-table').scrollTop = 1e9")
        page.wait_for(f"{ROWS}.at(-1).getAttribute('aria-rowindex') === '10001'")
        page.evaluate("document.getElementById('search').focus()")
        page.call("Input.insertText", text="shardId-000000009999")
        page.wait_for(f"{ROWS}.length === 1")


def test_the_page_reconnects_to_a_dashboard_that_was_restarted(page: Page) -> None:
    view, history = view_after(small_fleet(), 4)
    for tries_left in (2, 1, 0):
        with run_dashboard(view, history) as dashboard:
            page.open(dashboard.url)
            port = urlsplit(dashboard.url).port or 0
        page.wait_for("document.getElementById('status').textContent.startsWith('connection lost')")
        try:
            with run_dashboard({**view, "application": "restarted"}, history, port=port):
                page.wait_for("document.getElementById('application').textContent === 'restarted'")
                page.leave()
            break
        except ConfigError:  # another program has got the port meanwhile
            if not tries_left:
                raise
    page.errors.clear()  # the refused connections


def test_a_recording_has_a_time_slider(page: Page) -> None:
    history = FleetHistory()
    fleet = unhealthy_fleet()
    frames = [{"view": view_at(fleet, step, history)} for step in range(12)]
    with run_playback(Playback(frames)) as dashboard:
        page.open(dashboard.url)
        assert "being watched" in page.evaluate("document.getElementById('banner').textContent")
        page.evaluate(
            "{ const slider = document.getElementById('slider'); slider.value = '11';"
            " slider.dispatchEvent(new Event('input')); }"
        )
        page.wait_for(f"document.body.dataset.drawn === '{frames[11]['view']['at']}'")
        page.wait_for("document.querySelectorAll('#shard-table .spark path').length >= 20")
        page.screenshot(SCREENSHOTS / "recording.png")
        assert "12 of 12" in page.evaluate("document.getElementById('moment').textContent")
        page.leave()
