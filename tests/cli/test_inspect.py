"""``sharpwave inspect``: its numbers against what was appended, and its pictures opened again."""

import json

import numpy as np
import pytest
from PIL import Image
from PIL.GifImagePlugin import GifImageFile

import sharpwave as sw
from sharpwave.cli.episode_pictures import CAPTION, MARGIN, TITLE, enlarged, image_field, write_picture
from sharpwave.cli.store_folders import histogram, spread
from sharpwave.offline.surveys import survey
from tests.cli.stores import LENGTHS, make_store, picture


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_store(tmp_path_factory.mktemp("stores") / "replay", place=sw.Field((3,), "float32"))


def test_json_has_every_number(sharpwave, folder):
    result = sharpwave("inspect", folder, "--json", "--best")
    assert result.code == 0, result.text
    told = json.loads(result.text)
    assert told["steps"] == sum(LENGTHS) + 50 and told["segment_steps"] == 16
    assert told["limits"] == {"capacity": 1000, "ram": None, "disk_limit": None, "seed": 0}
    assert told["fields"]["obs.eye"] == {
        "shape": [20, 30], "dtype": "uint8", "stack": None, "every": None, "pad": "repeat", "codec": "auto",
        "ragged": False, "max_length": None, "shared": False,
            "metadata": {},
    }  # fmt: skip
    assert [(lane["lane"], lane["first_step"], lane["last_step"], lane["gaps"]) for lane in told["lanes"]] == [
        (0, 0, sum(LENGTHS) - 1, []),
        (1, 0, 49, []),
    ]
    episodes = told["episodes"]
    counts = {name: episodes[name] for name in ("count", "whole", "terminated", "truncated", "unfinished")}
    assert counts == {"count": 4, "whole": 3, "terminated": 0, "truncated": 3, "unfinished": 1}
    length = {name: episodes["length"][name] for name in ("mean", "median", "min", "max")}
    assert length == {"mean": 29.0, "median": 30.0, "min": 12.0, "max": 45.0}
    assert episodes["return"]["mean"] == 15.0 and episodes["return"]["max"] == 45.0
    assert sum(episodes["length"]["counts"]) == sum(episodes["return"]["counts"]) == 3
    assert told["episode"] == {
        "number": told["episode"]["number"], "lane": 0, "first_step": 30, "steps": 45, "return": 45.0,
        "end": "truncated", "begun": True, "annotations": {},
    }  # fmt: skip
    sizes = told["bytes"]
    packed = [one for codecs in sizes["fields"].values() for one in codecs.values()]
    assert sizes["segments"] == sum(one["bytes"] for one in packed) + sizes["overhead"]
    assert sizes["raw"] == 137 * (20 * 30 + 12 + 8 + 4 + 1) == sum(one["raw_bytes"] for one in packed)
    assert sizes["files"] == sum(path.stat().st_size for path in (folder / "regions").iterdir())
    assert sum(region["segments"] + region["tails"] for region in told["regions"]) == told["segments"]
    assert told["damages"] == []


def test_what_people_read(here, folder):
    result = here("inspect", folder)
    assert result.code == 0 and "\x1b" not in result.text, result.text
    for part in ("137 steps", "obs.eye", "20x30", "4 episodes", "mean 29.00", "median 30.00", "████", "capacity 1,000"):
        assert part in result.text, part


def test_choosing_an_episode(here, folder):
    last = here("inspect", folder, "--last")
    assert last.code == 0 and "(12), return 0, truncated" in last.text
    number = int(last.text.split()[1].rstrip(":"))
    assert here("inspect", folder, "--episode", number).text == last.text


def test_a_contact_sheet_has_the_frames(folder, tmp_path):
    found = survey(folder)
    number = next(n for n, one in enumerate(found.episodes) if one.total == 45)
    assert write_picture(found, number, "obs.eye", tmp_path / "sheet.png", 6, 30) == 6
    with Image.open(tmp_path / "sheet.png") as file:
        image = np.array(file.convert("RGB"))
    times = 4  # 120 pixels / 30
    width, height = 30 * times, 20 * times
    assert (image.shape[1] - MARGIN) % (width + MARGIN) == 0
    columns = (image.shape[1] - MARGIN) // (width + MARGIN)
    assert image.shape[0] == TITLE + MARGIN + -(-6 // columns) * (height + CAPTION + MARGIN)
    for place, step in enumerate(np.linspace(0, 45, 6).round().astype(int)):
        left = MARGIN + place % columns * (width + MARGIN)
        top = TITLE + MARGIN + place // columns * (height + CAPTION + MARGIN)
        drawn = image[top : top + height, left : left + width]
        np.testing.assert_array_equal(drawn, enlarged(picture(30 + int(step), (20, 30))))
        assert (image[top + height : top + height + CAPTION, left : left + width] < 128).any(), "a caption"


@pytest.mark.parametrize("shape", [(20, 30), (20, 30, 1), (20, 30, 3), (16, 16, 4), (200, 160, 3)])
def test_pictures_by_the_command(here, tmp_path, shape):
    store = make_store(tmp_path / "store", shape)
    sheet, film = tmp_path / "a.png", tmp_path / "a.GIF"
    assert here("inspect", store, "--best", "--out", sheet).code == 0
    with Image.open(sheet) as image:
        assert image.format == "PNG"
    result = here("inspect", store, "--best", "--out", film, "--fps", 20)
    assert result.code == 0 and "46 frames" in result.text, result.text
    with Image.open(film) as image:
        assert isinstance(image, GifImageFile)
        assert image.n_frames == 46  # of 45 steps, and the final observation
        times = -(-120 // max(shape[:2]))
        assert image.size == (shape[1] * times, shape[0] * times) and image.info["duration"] == 50
        image.seek(45)
        frame = np.array(image.convert("RGB"))
    np.testing.assert_array_equal(frame, enlarged(picture(75, shape)))


def test_frames_that_are_alike_take_their_time(tmp_path):
    spec = sw.Spec(obs=sw.Field((4, 4), "uint8"), action=sw.Field((), "int64"))
    with sw.Store(spec, capacity=100, disk=tmp_path / "s") as store:
        for step in range(10):
            obs = np.full((4, 4), 200 if step == 7 else 0, np.uint8)
            store.append(lane=0, obs=obs, action=0, reward=0, terminated=step == 9, truncated=False)
        store.flush()
    assert write_picture(survey(tmp_path / "s"), 0, "obs", tmp_path / "a.gif", None, 10) == 11
    with Image.open(tmp_path / "a.gif") as image:
        assert isinstance(image, GifImageFile)
        durations = []
        for number in range(image.n_frames):
            image.seek(number)
            durations.append(image.info["duration"])
    assert sum(durations) == 1100


def test_a_store_without_images(here, tmp_path):
    spec = sw.Spec(obs={"a": sw.Field((3,), "float32"), "b": sw.Field((2, 2), "int8")}, action=sw.Field((), "int64"))
    with sw.Store(spec, capacity=100, disk=tmp_path / "s") as store:
        obs = {"a": np.zeros(3, np.float32), "b": np.zeros((2, 2), np.int8)}
        store.append(lane=0, obs=obs, action=0, reward=0, terminated=True, truncated=False)
        store.flush()
    result = here("inspect", tmp_path / "s", "--last", "--out", tmp_path / "a.png")
    assert result.code == 2 and "only images can be drawn" in result.text and "obs.a is float32 [3]" in result.text
    assert not (tmp_path / "a.png").exists()
    assert image_field(sw.Spec(obs=sw.Field((5, 5, 3), "uint8"), action=sw.Field((), "int64")), None) == "obs"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["NOWHERE"], "no store there"),
        (["STORE", "--best", "--last"], "--best and --last choose an episode each"),
        (["STORE", "--episode", "4"], "--episode: got 4, expected from 0 to 3"),
        (["STORE", "--out", "a.png"], "--out needs an episode"),
        (["STORE", "--best", "--out", "a.jpg"], "expected a name that ends in .png or .gif"),
        (["STORE", "--best", "--out", "nowhere/a.png"], "make it first"),
        (["STORE", "--best", "--out", "STORE/a.png"], "is in the store's folder"),
        (["STORE", "--best", "--out", "TMP/a.png", "--field", "ear"], "expected one of obs.eye, obs.place"),
        (["STORE", "--best", "--out", "TMP/a.png", "--field", "place"], "only images can be drawn"),
    ],
)
def test_errors_teach(here, folder, tmp_path, arguments, message):
    names = {"STORE": str(folder), "NOWHERE": str(tmp_path / "nowhere"), "TMP": str(tmp_path)}
    words = ["/".join(names.get(part, part) for part in word.split("/")) for word in arguments]
    result = here("inspect", *words)
    assert result.code == 2 and message in result.text and "Traceback" not in result.text, result.text


def test_damage_is_told_and_what_is_whole_is_shown(here, tmp_path):
    store = make_store(tmp_path / "s")
    (path,) = (store / "regions").glob("*.region")
    with path.open("r+b") as file:
        file.seek(300)
        file.write(b"\xff\xff")
    result = here("inspect", store)
    assert result.code == 0 and "sharpwave verify" in result.text and "damages are not counted in these" in result.text
    (store / "store.json").write_text("{}")
    result = here("inspect", store)
    assert result.code == 2 and "store.json: not what a store writes" in result.text


def test_histograms_by_hand():
    assert spread([])["mean"] is None and spread([float("nan")])["counts"] == []
    assert spread([3, 3])["counts"] == [2] and histogram(*[spread([3, 3])[k] for k in ("edges", "counts")])
    one = spread([1, 1, 2, 5])
    assert one["edges"] == [1, 2, 3, 4, 5, 6] and one["counts"] == [2, 1, 0, 0, 1]
    many = spread([float(value) for value in range(101)])
    assert len(many["counts"]) == 10 and sum(many["counts"]) == 101
    for huge in ([1e20], [-3e38, -3e38], [2.0**54, 2.0**54 + 4]):
        found = spread(huge)
        assert sum(found["counts"]) == len(huge) and len(histogram(found["edges"], found["counts"])) >= 1
    lines = histogram(one["edges"], one["counts"])
    assert lines[0].split() == ["1", "█" * 40, "2"] and lines[2].split() == ["3", "0"]


def test_columns_added_later_and_versions_are_listed(here, sharpwave, tmp_path):
    store = sw.Store(
        sw.Spec(obs=sw.Field((2,), "float32"), action=sw.Field((), "int8")), disk=tmp_path / "d", capacity=99
    )
    for step in range(20):
        store.append(obs=np.zeros(2), action=0, reward=1.0, terminated=step % 10 == 9, truncated=False)
    store.derive("to_go", lambda reward: reward, ("reward",))
    store.add_column("embedding", sw.Field((8,), "float16"))
    store.snapshot("v1", {"who": "[bold]Ada", "key": b"\x00"})
    store.drop_column("embedding")
    store.snapshot("v2")
    store.close()
    result = here("inspect", tmp_path / "d")
    assert result.code == 0, result.text
    for part in ("to_go", "v1 ", "v2 ", "who: [bold]Ada"):
        assert part in result.text, part
    told = json.loads(sharpwave("inspect", tmp_path / "d", "--json").text)
    assert told["columns"] == {"to_go": {"shape": [], "dtype": "float32", "values": 20, "bytes": 80}}
    v1 = json.loads(here("inspect", tmp_path / "d" / "versions" / "v1", "--json").text)
    assert [*v1["columns"]] == ["to_go", "embedding"] and v1["columns"]["embedding"]["values"] == 0
    assert [(one["name"], one["steps"], one["parent"]) for one in told["versions"]] == [
        ("v1", 20, None),
        ("v2", 20, "v1"),
    ]
    assert told["versions"][0]["columns"] == ["to_go", "embedding"]


def test_fields_tell_their_kind_and_deletions_are_counted(here, tmp_path):
    """Values of deleted steps count no more; a damaged file of values is told, and the rest shown."""
    spec = sw.Spec(
        obs=sw.Field(str, max_length=9),
        action=sw.Field((None, 3), "int8"),
        goal=sw.Field((2,), "float32", shared=True),
    )
    with sw.Store(spec, disk=tmp_path / "d", capacity=99) as store:
        for k in range(4):
            goal = np.full((5, 2), k, np.float32)
            rows = [np.zeros((k, 3), np.int8)] * 5
            store.add_episode(obs=["o"] * 6, action=rows, goal=goal, reward=np.ones(5), terminated=True)
        store.add_column("mark", sw.Field((2,), "int16"))
        store.write_column("mark", store.ids(0, np.arange(8)), np.ones((8, 2), np.int16))
        assert store.delete(episodes=store.episodes()[1:2]) == 5
    text = here("inspect", tmp_path / "d").text
    lines = [line.split() for line in text.splitlines()]
    assert ["obs", "0-9", "str", "-", "-", "-", "auto", "-"] in lines
    assert ["action", "anyx3", "int8", "-", "-", "-", "auto", "-"] in lines
    assert ["goal", "2", "float32", "-", "-", "-", "auto", "yes"] in lines
    (values,) = (line for line in lines if line[:2] == ["shared", "values"])
    assert values[2:5] == ["in", "all", "files"] and values[-2:] == ["B", "-"]  # not divided by held steps
    assert ["mark", "2", "int16", "5", "20", "B"] in lines and "15 steps" in text and "5 further steps" in text
    told = json.loads(here("inspect", tmp_path / "d", "--json").text)
    assert (told["steps"], told["deleted_steps"]) == (15, 5)
    kinds = [(one["ragged"], one["max_length"], one["shared"]) for one in told["fields"].values()]
    assert kinds == [(True, 9, False), (True, None, False), (False, None, True)]
    largest = max((tmp_path / "d" / "columns").iterdir(), key=lambda path: b"written" in path.read_bytes())
    largest.write_bytes(largest.read_bytes()[:-1])
    text = here("inspect", tmp_path / "d").text
    assert "column 'mark'" in text and ["mark", "2", "int16", "?", "?"] in [line.split() for line in text.splitlines()]
