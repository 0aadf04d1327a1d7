"""The page in a real browser, driven by selenium. Chromium is no package of the project:

apt-get install chromium chromium-driver
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import sharpwave as sw
from sharpwave.errors import DamagedError
from sharpwave.viewer.endpoints import Endpoints
from tests.offline.written import SPEC, Writer, fill, observation
from tests.viewer.runs import trained
from tests.viewer.served import serving

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
if CHROMIUM is None or DRIVER is None:
    pytest.skip("needs Chromium: apt-get install chromium chromium-driver", allow_module_level=True)
webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium: install the extra test")
ARROW_DOWN, ARROW_LEFT, ARROW_RIGHT, END, ENTER = "\ue015", "\ue012", "\ue014", "\ue010", "\ue007"
"""Keys, as WebDriver has them."""

SCRIPT = "</script><script>window.harmed=1</script><img src=x onerror='window.harmed=1'>"
OPTIONS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--window-size=1280,820",
]  # fmt: skip
EPISODES = 3000


class Made(NamedTuple):
    folder: Path
    writer: Writer


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for one in [*OPTIONS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"]:
        options.add_argument(one)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A run, its memory on disk and in a checkpoint; and a store of thousands of episodes with hostile names."""
    folder = tmp_path_factory.mktemp("served")
    run = folder / "a-run"
    run.mkdir()
    with sw.Store(SPEC, capacity=2000, disk=run / "replay", segment_steps=16) as store:
        view = store.transitions(sampler=sw.Prioritized())
        writer = Writer(store)
        fill(writer, 600, 3)
        for _ in range(20):
            batch = view.sample(32)
            view.update_priorities(batch.ids, np.random.default_rng(0).exponential(1, 32))
        store.flush()
        (run / "checkpoints" / f"{600:012d}").mkdir(parents=True)
        store.checkpoint(run / "checkpoints" / f"{600:012d}" / "replay")
    (run / "config.json").write_text('{"settings": {"agent": {"lr": 0.1, "<b>x": "<script>window.harmed=1</script>"}}}')
    events = [{"event": "episode", "steps": k, "minutes": k, "reward": k, "mean_reward": k} for k in range(50)]
    events += [{"event": "report", "steps": 50, "minutes": 50, "avg_fps": 9, "replay_bytes": 9, "avg_loss": 1}]
    (run / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in events))
    spec = sw.Spec(
        obs={SCRIPT.replace(".", ""): sw.Field((2,), "float32", metadata={SCRIPT: SCRIPT})},
        action=sw.Field((), "int64"), **{SCRIPT: sw.Field((), "float32")},
    )  # fmt: skip
    name, zero = SCRIPT.replace(".", ""), np.zeros(2, np.float32)
    with sw.Store(spec, capacity=10_000, disk=folder / "<i>store", codec="raw") as store:
        store.annotate(None, {SCRIPT: SCRIPT})
        for _ in range(EPISODES):
            store.append(lane=0, obs={name: zero}, action=0, reward=1.0, terminated=True, truncated=False,
                         final_obs={name: zero}, **{SCRIPT: 0.5})  # fmt: skip
        store.flush()
    return Made(folder, writer)


@pytest.fixture(scope="module")
def page(browser: Any, made: Made) -> Iterator[Callable[[str], Any]]:
    with serving(made.folder) as server:
        assert [one.source.name for one in server.watched] == ["<i>store", "a-run"]

        def show(path: str) -> Any:
            browser.get(server.url + path)
            until(browser, "return !document.getElementById('page').textContent.includes('Reading ...')")
            return browser

        yield show


def until(browser: Any, script: str, timeout_s: float = 30) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := browser.execute_script(script)):
        assert time.monotonic() < deadline, (script, browser.execute_script("return document.body.innerText")[:500])
        time.sleep(0.03)
    return found


def complaints(browser: Any) -> list[str]:
    return [one["message"] for one in browser.get_log("browser") if one["level"] == "SEVERE"]


def check_that_it_fits(browser: Any) -> None:
    """In windows down to a phone's width: nothing beside the window, and no word of a table broken."""
    fits = "return document.documentElement.scrollWidth <= innerWidth"
    broken = """return [...document.querySelectorAll('nav a, td .name, .rowhead button')].filter(
        (one) => /^\\w{1,20}$/.test(one.textContent) && one.getClientRects().length > 1)
        .map((one) => one.textContent)"""
    for width in (900, 420, 1280):
        browser.set_window_size(width, 820)
        assert browser.execute_script(fits), width
        assert browser.execute_script(broken) == [], width


TABS = ["", *(f"tab={one}" for one in ("episodes", "episode", "priorities", "memory", "compare", "versions"))]


@pytest.mark.parametrize("source", [pytest.param(0, marks=pytest.mark.nightly), 1])
@pytest.mark.parametrize("tab", TABS)
def test_every_tab_fits_and_runs_no_foreign_code(page: Any, source: int, tab: str) -> None:
    browser = page(f"/?source={source}&{tab}")
    until(browser, "return document.querySelector('#page .card, #page .note')")
    check_that_it_fits(browser)
    assert not browser.execute_script("return window.harmed")
    assert not browser.find_elements(
        "css selector", "#page img, #page script, #page i:not(.key):not(.stack i), #page b script"
    )
    expected = ["404"] if source == 0 and "priorities" in tab else []
    assert all(any(one in text for one in expected) for text in complaints(browser))


@pytest.mark.slow
def test_arrows_move_through_an_episode(page: Any, made: Made) -> None:
    browser = page("/?source=1&tab=episodes&sort=length")
    until(browser, "return document.querySelector('.row.chosen') && document.querySelector('.sheet')")
    browser.find_element("tag name", "body").send_keys(ARROW_DOWN, ENTER)
    until(browser, "return document.querySelector('.player')")
    where = dict(part.split("=") for part in browser.current_url.partition("?")[2].split("&"))
    lane, first = int(where["lane"]), int(where["first"])
    episode = sorted(made.writer.episodes(), key=lambda one: -one[2])[1]
    body = browser.find_element("tag name", "body")
    body.send_keys(ARROW_RIGHT, ARROW_RIGHT, ARROW_RIGHT, ARROW_LEFT)
    until(browser, "return location.search.includes('step=2')")
    assert (lane, first) in {(one[0], one[1]) for one in made.writer.episodes() if one[2] == episode[2]}
    red = """(() => {
        const one = document.querySelector('.stage canvas');
        const { data } = one.getContext('2d').getImageData(0, 0, one.width, one.height);
        return [...data].filter((_, k) => k % 4 === 0);
    })()"""
    until(browser, f"return {red}.some((one) => one)")
    serial, reward, _ = made.writer.history[lane][first + 2]
    until(browser, "return document.querySelector('.values dd')")
    drawn = np.array(browser.execute_script(f"return {red}"), np.uint8).reshape(24, 24)
    np.testing.assert_array_equal(drawn, observation(serial)["picture"])
    names, texts = (
        browser.execute_script(f"return [...document.querySelectorAll('.values {tag}')].map((one) => one.textContent)")
        for tag in ("dt", "dd")
    )
    values = dict(zip(names, texts, strict=True))
    assert values["reward"] == f"{reward:g}" and values["action"] == str(serial % 5)
    body.send_keys(END)
    until(browser, "return document.querySelector('.at').textContent.includes('final')")
    until(browser, f"return location.search.includes('step={episode[2]}')")
    browser.get(browser.current_url)
    until(browser, "return document.querySelector('.at')?.textContent.includes('final')")
    browser.back()
    until(browser, "return document.querySelector('.rowhead')")
    assert not complaints(browser)


@pytest.mark.slow
def test_frames_are_shown_as_loading_until_they_are_there(page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """And as failed where they cannot be read; an unread frame was black, as a dark one is."""
    go_on, sheet = threading.Event(), Endpoints._sheet

    def slow(*given: Any) -> bytes:
        assert go_on.wait(60)
        return sheet(*given)

    def damaged(*given: Any) -> bytes:
        raise DamagedError("made up")

    monkeypatch.setattr(Endpoints, "_cached", lambda self, key: None)
    states = "return ['loading', 'failed'].map((one) => document.querySelectorAll(`canvas.${one}`).length)"
    browser = page("/?source=1")
    browser.execute_cdp_cmd("Network.enable", {})
    browser.execute_cdp_cmd("Network.setCacheDisabled", {"cacheDisabled": True})
    try:
        monkeypatch.setattr(Endpoints, "_sheet", slow)
        page("/?source=1&tab=episode&lane=0&first=0")
        until(browser, "return document.querySelector('.stage canvas.loading, .sheet canvas.loading')")
        assert browser.execute_script(states)[1] == 0
        colour = "return getComputedStyle(document.querySelector('.stage canvas')).backgroundColor"
        assert browser.execute_script(colour) != "rgb(0, 0, 0)"
        go_on.set()
        until(browser, "return !document.querySelector('canvas.loading')")
        assert browser.execute_script(states) == [0, 0] and not complaints(browser)
        monkeypatch.setattr(Endpoints, "_sheet", damaged)
        page("/?source=1&tab=episode&lane=0&first=0&step=1")
        until(browser, "return document.querySelector('.stage canvas.failed')")
        until(browser, "return document.querySelector('.sheet canvas.failed')")
        assert browser.execute_script(states)[0] == 0 and complaints(browser)
    finally:
        go_on.set()
        browser.execute_cdp_cmd("Network.disable", {})


@pytest.mark.slow
def test_q_values_of_a_run_are_computed_on_request(browser: Any, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    run = trained("cartpole", tmp_path / "run", steps=600, warmup_steps=200, hidden_units=16)
    with serving(run) as server:
        (row,) = server.get("0/episodes", sort="return", desc=1, whole=1, limit=1)["rows"]
        browser.get(f"{server.url}/?tab=episode&lane={row['lane']}&first={row['first']}")
        until(browser, "return document.querySelector('.values dd')")
        assert "Q-values by" not in browser.find_element("tag name", "body").text
        (button,) = browser.find_elements("xpath", "//button[text()='Q-values']")
        button.click()
        until(browser, "return document.body.innerText.includes('Q-values by the policy saved after 600 steps')", 60)
        told = server.get("0/values", lane=row["lane"], first=row["first"])
        browser.find_element("tag name", "body").send_keys(ARROW_RIGHT, ARROW_RIGHT)
        until(browser, "return location.search.includes('step=2') && location.search.includes('values=1')")
        shown = """return Object.fromEntries([...document.querySelectorAll('.values dt')].map(
            (one) => [one.textContent, one.nextElementSibling.textContent]))"""
        until(browser, f"return (() => {{ {shown} }})()['Q of each action']")
        values = browser.execute_script(shown)
        each = [float(one) for one in values["Q of each action"].split(" · ")]
        np.testing.assert_allclose(each, told["each"][2], rtol=2e-3)
        assert float(values["Q of the best action"]) == max(each)
        assert float(values["Q of the action taken"]) == each[int(values["action"])]
        np.testing.assert_allclose(float(values["TD error, 1 step"]), told["curves"][2]["values"][2], rtol=2e-3)
        titles = "return [...document.querySelectorAll('.curve h2')].map((one) => one.textContent)"
        assert browser.execute_script(titles)[:4] == ["reward", "action", "Q-values", "TD error, 1 step"]
        (chip,) = browser.find_elements("xpath", "//button[@class='chip'][text()='Q-values']")
        chip.click()
        assert "Q-values" not in browser.execute_script(titles)
        browser.get(browser.current_url)
        until(browser, "return document.querySelector('.values-note')?.textContent.includes('600')")
        assert "Q-values" not in browser.execute_script(titles) and not complaints(browser)
        (run / "last.safetensors").write_bytes(b"")
        browser.refresh()
        until(browser, "return document.querySelector('.values-note')?.textContent.includes('No Q-values: policy')")


@pytest.mark.slow
def test_a_store_offers_no_q_values(page: Any) -> None:
    browser = page("/?source=0&tab=episode")
    until(browser, "return document.querySelector('.values dd')")
    assert not browser.find_elements("xpath", "//button[text()='Q-values']")


@pytest.mark.slow
def test_thousands_of_episodes_are_listed_as_they_are_seen(page: Any) -> None:
    browser = page("/?source=0&tab=episodes&sort=age&desc=1")
    until(browser, "return document.querySelector('.row')")
    assert f"{EPISODES:,}" in browser.find_element("css selector", ".tools").text
    assert browser.execute_script("return document.querySelectorAll('.row').length") < 80
    browser.find_element("tag name", "body").send_keys(END)
    until(browser, "return document.querySelector('.row.chosen')?.firstChild.textContent === '2999'")
    assert browser.execute_script("return document.querySelectorAll('.row').length") < 80
    assert not complaints(browser)


@pytest.mark.slow
def test_a_filter_is_in_the_url_and_its_errors_are_under_the_box(page: Any, made: Made) -> None:
    pytest.importorskip("duckdb")
    browser = page("/?source=1&tab=episodes")
    until(browser, "return document.querySelector('.row.chosen')")
    box = browser.find_element("css selector", ".filter")
    box.send_keys("length > 20 and ended = 'terminated'", ENTER)
    matching = [one for one in made.writer.episodes() if one[2] > 20 and one[4] == "terminated"]
    everything = len(made.writer.episodes())
    until(browser, f"return document.querySelector('.tools').innerText.includes('{len(matching)} of {everything}')")
    browser.refresh()
    until(browser, f"return document.querySelector('.tools')?.innerText.includes('{len(matching)} of {everything}')")
    assert browser.execute_script("return document.querySelectorAll('.row').length") == min(len(matching), 40)
    browser.find_element("tag name", "body").send_keys(ENTER)
    until(browser, "return document.querySelector('.player') && location.search.includes('where=length')")
    browser.back()
    until(browser, "return document.querySelector('.filter')?.value.startsWith('length > 20')")
    box = browser.find_element("css selector", ".filter")
    box.clear()
    box.send_keys("lenth > 20", ENTER)
    until(
        browser, "return document.querySelector('.bad-text:not([hidden])')?.innerText.includes('\"lenth\" not found')"
    )
    assert not browser.find_elements("css selector", ".row")
    columns = browser.find_element("css selector", ".filters details")
    assert columns.get_attribute("open") and "return, begun, ended" in columns.text
    assert any("400" in one for one in complaints(browser))
    page("/?source=1&tab=episodes&proposed=length+%3E+20")
    until(browser, "return document.querySelector('.row.chosen')")
    assert browser.find_element("css selector", ".filter").get_attribute("value") == "length > 20"
    assert "of" not in browser.find_element("css selector", ".tools span").text and not complaints(browser)


@pytest.mark.slow
def test_text_is_shown_and_folded_and_late_columns_have_gaps(browser: Any, tmp_path: Path) -> None:
    spec = sw.Spec(
        obs=sw.Field((2,), "float32"), action=sw.Field((), "int64"), prompt=sw.Field(str),
        tokens=sw.Field((None,), "int32"),
    )  # fmt: skip
    with sw.Store(spec, capacity=100, disk=tmp_path) as store:
        store.add_episode(
            lane=0, obs=np.zeros((4, 2)), action=np.zeros(3, int), reward=np.ones(3), terminated=True,
            prompt=[SCRIPT, "two\nlines", "long " * 2000], tokens=[[], [7, 8], np.arange(3000)],
        )  # fmt: skip
        store.add_column("advantage", sw.Field((), "float32"))
        store.write_column("advantage", store.episodes()[0].ids[:2], [0.5, -1.5])
        store.flush()
    with serving(tmp_path) as server:
        browser.get(f"{server.url}/?tab=episode&lane=0&first=0")
        rows = "return [...document.querySelectorAll('.row-field')].map((one) => one.innerText)"
        until(browser, "return document.querySelectorAll('.row-field').length === 2")
        prompt, tokens = browser.execute_script(rows)
        assert prompt == f"prompt\n{len(SCRIPT):,} characters\n{SCRIPT}" and tokens == "tokens\n0 numbers"
        titles = "return [...document.querySelectorAll('.curve h2')].map((one) => one.textContent)"
        assert browser.execute_script(titles) == ["reward", "advantage", "action", "obs"]
        body = browser.find_element("tag name", "body")
        body.send_keys(ARROW_RIGHT)
        until(browser, f"return (() => {{ {rows} }})()[1]?.endsWith('7 8')")
        assert browser.execute_script(rows)[0].endswith("\ntwo\nlines")
        assert not browser.find_elements("css selector", ".row-field button")
        body.send_keys(ARROW_RIGHT)
        until(browser, "return document.querySelectorAll('.row-text.folded').length === 2")
        height = "return document.querySelector('.row-text').offsetHeight"
        folded = browser.execute_script(height)
        browser.find_element("css selector", ".row-field button").click()
        assert browser.execute_script(height) > folded < 200
        values = "return document.querySelector('.values').innerText"
        assert "–" in browser.execute_script(values) and not complaints(browser)
        check_that_it_fits(browser)
        assert not browser.execute_script("return window.harmed")


@pytest.mark.slow
def test_unicode_long_texts_and_decoded_tokens_are_shown(browser: Any, tmp_path: Path) -> None:
    """In the direction of their script; a long one is folded, and markup is text also in what tokens decode to."""
    spec = sw.Spec(
        obs=sw.Field((2,), "float32"), action=sw.Field((), "int64"), prompt=sw.Field(str, shared=True),
        tokens=sw.Field((None,), "int32"),
    )  # fmt: skip
    prompts = ["Größe, 你好 🙂\n\tde\u0301j\u00e0 vu", "שלום עולם, and English", "100 kB " * 14_000]
    with sw.Store(spec, capacity=100, disk=tmp_path) as store:
        for prompt in prompts:
            store.add_episode(
                lane=0, obs=np.zeros((2, 2)), action=np.zeros(1, int), reward=np.ones(1), terminated=True,
                prompt=[prompt], tokens=[[7, 8]],
            )  # fmt: skip
        store.derive("doubled", lambda reward: 2 * reward, needs=("reward",))
        store.delete(episodes=store.episodes(order="oldest")[2:])
        store.add_episode(
            lane=0, obs=np.zeros((2, 2)), action=np.zeros(1, int), reward=np.ones(1), terminated=True,
            prompt=[prompts[2]], tokens=[[7, 8]],
        )  # fmt: skip
        store.flush()
    with serving(tmp_path, decode=lambda tokens: f"{SCRIPT}\n{tokens}") as server:
        texts = """return [...document.querySelectorAll('.row-text')].filter((one) => !one.hidden).map(
            (one) => one.innerText)"""
        for first, prompt in zip((0, 1, 3), prompts, strict=True):
            browser.get(f"{server.url}/?tab=episode&lane=0&first={first}")
            until(browser, "return document.querySelectorAll('.row-field').length === 2")
            assert browser.execute_script(texts) == [prompt[:20_000].rstrip(" "), f"{SCRIPT}\n[7, 8]"]
            style = "return getComputedStyle(document.querySelector('.row-text')).direction"
            assert browser.execute_script(style) == ("rtl" if prompt.startswith("ש") else "ltr")
            folded = len(browser.find_elements("css selector", ".row-text.folded"))
            assert folded == (len(prompt) > 900)
            ids = browser.find_elements("css selector", ".row-field .button")[-1]
            assert ids.text == "show ids"
            ids.click()
            assert browser.execute_script(texts)[2:] == ["7 8"] and ids.text == "hide ids"
            of = """return Object.fromEntries([...document.querySelectorAll('.curve')].map((one) => {
                const { plot } = one.querySelector('.chart');
                return [one.innerText.split('\\n')[0], [...plot.data, plot.series[1].points.show(plot, 1)]];
            }))"""
            curves = browser.execute_script(of)
            assert curves["reward"] == [[0], [1], True]  # a point: there is no line through a single step
            assert curves["doubled"][1] == ([2] if first < 3 else [None])
            check_that_it_fits(browser)
            assert not browser.execute_script("return window.harmed") and not complaints(browser)
        browser.get(server.url)
        until(browser, "return document.querySelector('.facts')")
        page = browser.find_element("id", "page").text
        assert "raw arrays, without ragged and shared fields" in page and "auto, shared" in page


@pytest.mark.slow
def test_a_live_list_keeps_its_choice(browser: Any, tmp_path: Path) -> None:
    """The chosen row and the episode beside the list stay the same one as newer episodes come before it."""
    with sw.Store(SPEC, capacity=2000, disk=tmp_path, segment_steps=16) as store:
        writer = Writer(store)
        for _ in range(3):
            for _ in range(4):
                writer.append(0)
            writer.append(0, "terminated")
        store.flush()
        with serving(tmp_path) as server:
            browser.get(f"{server.url}/?tab=episodes")
            until(browser, "return document.querySelector('.row.chosen') && document.querySelector('.side .sheet')")
            for _ in range(2):
                writer.append(0, "terminated")
            store.flush()
            server.watched[0].update()
            until(browser, "return document.querySelector('.tools span').innerText === '5'")
            until(browser, "return document.querySelector('.row.chosen')?.firstChild.textContent === '2'")
            assert browser.find_element("css selector", ".side h2").text == "Episode 2"
            assert "pick=2" in browser.current_url and not complaints(browser)


@pytest.mark.slow
def test_versions_are_listed_compared_and_missed_when_they_are_deleted(browser: Any, tmp_path: Path) -> None:
    with sw.Store(SPEC, capacity=2000, disk=tmp_path / "store", segment_steps=16) as store:
        writer = Writer(store)
        fill(writer, 200, 2)
        store.flush()
        with serving(tmp_path / "store") as server:
            browser.get(f"{server.url}/?tab=versions")
            until(browser, "return document.body.innerText.includes('This store has no versions')")
            store.snapshot("one", note={"who": SCRIPT, "source": SCRIPT})
            episodes = len(writer.episodes())
            cells = "return [...document.querySelectorAll('td')].map((one) => one.innerText)"
            until(browser, f"return (() => {{ {cells} }})()[3] === '{episodes}'")  # as it is made, and as it is read
            row = browser.execute_script(cells)
            assert (row[0], row[2], row[7]) == ("one", "200", "–") and row[8].startswith(SCRIPT)
            check_that_it_fits(browser)
            fill(writer, 100, 2, seed=1)
            store.add_column("advantage", sw.Field((), "float32"))
            store.flush()
            server.watched[0].update()
            browser.find_element("link text", "beside the store").click()
            until(browser, "return document.querySelectorAll('.chart .u-over').length")
            names = "return [...document.querySelectorAll('.title select')].map((one) => one.selectedOptions[0].text)"
            assert browser.execute_script(names) == ["store @ one", "store"]
            text = browser.find_element("tag name", "body").text
            assert "columns added later – advantage –" in " ".join(text.split())
            assert "Returns of whole episodes" in text and "Only in store @ one" in text and "Only in store" in text
            browser.find_elements("css selector", ".only a")[-1].click()
            until(browser, "return document.querySelector('.player')")
            browser.get(f"{server.url}/?source=0@one&tab=episodes")
            until(browser, "return document.querySelector('.row.chosen')")
            assert browser.find_element("css selector", ".tools span").text == str(episodes)
            assert not complaints(browser)
            store.delete_version("one")
            until(browser, "return document.querySelector('.note')?.innerText.includes(`version 'one'`)")
            assert browser.find_element("css selector", ".status").text.startswith("deleted")
            assert not browser.execute_script("return window.harmed") and complaints(browser)
            browser.get(f"{server.url}/")
            until(browser, "return document.querySelector('.facts')")


@pytest.mark.slow
def test_keys_and_help(page: Any) -> None:
    browser = page("/?source=1")
    body = browser.find_element("tag name", "body")
    for key, tab in {"2": "episodes", "3": "priorities", "4": "memory", "5": "compare", "6": "versions"}.items():
        body.send_keys(key)
        until(browser, f"return location.search.includes('tab={tab}')")
    body.send_keys("?")
    until(browser, "return document.querySelector('dialog[open]')")


@pytest.mark.slow
def test_colours_follow_the_system(page: Any) -> None:
    browser = page("/?source=1")
    colour = "return getComputedStyle(document.body.parentElement).backgroundColor"
    light = browser.execute_script(colour)
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    assert browser.execute_script(colour) != light
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@pytest.mark.slow
def test_it_asks_nobody_else(page: Any, made: Made) -> None:
    browser = page("/?source=1")
    origins = "return [...new Set(performance.getEntriesByType('resource').map((one) => new URL(one.name).origin))]"
    assert browser.execute_script(origins) == [browser.execute_script("return location.origin")]
