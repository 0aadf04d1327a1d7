"""Texts, tokens and columns added later, as the endpoints tell them, against what was written."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette", reason="the viewer needs the extra view: pip install 'sharpwave[view]'")

import sharpwave as sw
from sharpwave.viewer import step_curves
from tests.viewer.served import Server, serving

SPEC = sw.Spec(
    obs=sw.Field((2,), "float32"), action=sw.Field((), "int64"), prompt=sw.Field(str), blob=sw.Field(bytes),
    tokens=sw.Field((None,), "int32"), states=sw.Field((None, 3), "float16"),
)  # fmt: skip
LENGTHS = (5, 1, 12, 30, 7)


def texts(serial: int) -> str:
    """Texts of any length, with markup, line breaks, and characters that move the cursor."""
    special = ["", "<b>bold</b>\n\tindented", "שלום 🌊 \u200d", "\x1b[31mred\r", "\u202egnp.exe", "a" * 30_000, "\0"]
    return special[serial % len(special)] + f" {serial}"


def written(folder: Path) -> tuple[sw.Store, Any]:
    store, serial = sw.Store(SPEC, capacity=1000, disk=folder, segment_steps=8), 0
    for length in LENGTHS:
        steps = range(serial, serial + length)
        store.add_episode(
            lane=0, obs=np.zeros((length + 1, 2)), action=np.zeros(length, int),
            reward=np.arange(serial, serial + length), terminated=True,
            prompt=[texts(k) for k in steps], blob=[bytes([k % 256]) * (k * 40) for k in steps],
            tokens=[np.arange(k * 100) - 1 for k in steps], states=[np.full((k % 4, 3), k) for k in steps],
        )  # fmt: skip
        serial += length
    store.flush()
    return store, store.episodes(order="oldest")


def shown(server: Server, first: int, step: int) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in server.get("0/step", lane=0, first=first, step=step)["values"]}


def curves(server: Server, first: int, **query: Any) -> dict[str, list[float | None]]:
    told = server.get("0/steps", lane=0, first=first, **query)
    return {one["label"]: one["values"] for one in told["curves"]}


def test_rows_of_any_length_are_shown_as_they_were_written(tmp_path: Path) -> None:
    store, _ = written(tmp_path)
    store.close()
    with serving(tmp_path) as server:
        assert {one["name"]: one["ragged"] for one in server.get("0/overview")["memory"]["fields"]} == {
            "obs": False, "action": False, "prompt": True, "blob": True, "tokens": True, "states": True
        }  # fmt: skip
        for serial in range(sum(LENGTHS)):
            episode = int(np.searchsorted(np.cumsum(LENGTHS), serial, side="right"))
            first = sum(LENGTHS[:episode])
            values = shown(server, first, serial - first)
            assert values["reward"]["text"] == str(serial) and "unit" not in values["action"]
            text, most = texts(serial), step_curves.MAX_CHARACTERS
            assert (values["prompt"]["count"], values["prompt"]["unit"]) == (len(text), "characters")
            assert values["prompt"]["left_out"] == max(0, len(text) - most)
            told = values["prompt"]["text"]
            for raw, escape in {"\x1b": "\\x1b", "\r": "\\r", "\u202e": "\\u202e", "\0": "\\x00"}.items():
                text = text.replace(raw, escape)
            assert told == text[:most] or (len(text) > most and text.startswith(told))
            blob = bytes([serial % 256]) * (serial * 40)
            assert values["blob"] == {
                "name": "blob", "text": blob[: step_curves.MAX_HEX].hex(" "), "unit": "bytes", "count": len(blob),
                "left_out": max(0, len(blob) - step_curves.MAX_HEX),
            }  # fmt: skip
            tokens = list(range(-1, serial * 100 - 1))
            assert values["tokens"]["text"] == " ".join(map(str, tokens[: step_curves.MAX_NUMBERS]))
            assert (values["tokens"]["count"], values["tokens"]["unit"]) == (len(tokens), "numbers")
            assert values["states"]["text"] == "\n".join([f"{serial} {serial} {serial}"] * (serial % 4))
            assert (values["states"]["count"], values["states"]["unit"]) == (serial % 4, "rows of 3")
        assert list(curves(server, 0)) == ["reward", "obs[0]", "obs[1]", "action"]
        answer = server.ask("/api/0/step", lane=0, first=0, step=4)
        assert answer.body.isascii()


def test_tokens_are_decoded_by_a_tokenizer(tmp_path: Path) -> None:
    """Rows of integers alone, as many as are shown; what the tokenizer refuses is told in their place."""
    store, _ = written(tmp_path)
    store.close()

    def decode(tokens: list[int]) -> str:
        if len(tokens) > 4000:
            raise OverflowError("no such token \x1b[31m")
        return "".join(f"<{token}>" if token % 10 else "\n\u202e" for token in tokens)

    with serving(tmp_path, decode=decode) as server:
        for serial in (0, 1, 5, 40, 54):
            episode = int(np.searchsorted(np.cumsum(LENGTHS), serial, side="right"))
            first = sum(LENGTHS[:episode])
            values = shown(server, first, serial - first)
            assert [name for name, one in values.items() if "decoded" in one] == ["tokens"]
            tokens = list(range(-1, serial * 100 - 1))[: step_curves.MAX_NUMBERS]
            assert values["tokens"]["text"] == " ".join(map(str, tokens))
            told = values["tokens"]["decoded"]
            if serial == 54:
                assert told == "(no such token \\x1b[31m)"
            else:
                assert told == decode(tokens[1:])[: step_curves.MAX_CHARACTERS].replace("\u202e", "\\u202e")


def test_a_tokenizer_decodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also special tokens; other files are refused by name, and so is the library's absence."""
    special = {"id": 4, "content": "[END]", "special": True}
    special |= dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    vocabulary = {"[UNK]": 0, "push": 1, "the": 2, "box": 3, "[END]": 4}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"}
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps({"version": "1.0", "added_tokens": [special], "model": model}))
    assert step_curves.tokenizer_of(file)([1, 2, 3, 4]) == "push the box [END]"
    file.write_text("{}")
    for wrong in (file, tmp_path / "missing.json"):
        with pytest.raises(ValueError, match=rf"--tokenizer '.*{wrong.name}': .*; expected a tokenizer.json"):
            step_curves.tokenizer_of(wrong)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ModuleNotFoundError, match=r"--tokenizer needs tokenizers: pip install .*tokens"):
        step_curves.tokenizer_of(file)


@pytest.mark.parametrize("kind", ["store", "closed", "version", "checkpoint"])
def test_columns_added_later_are_curves_with_gaps(kind: str, tmp_path: Path) -> None:
    store, episodes = written(tmp_path / "store")
    rng, values = np.random.default_rng(0), dict[int, np.ndarray[Any, Any]]()
    store.add_column("advantage", sw.Field((), "float32"))
    store.add_column("judge", sw.Field((2,), "int16"))
    for one in episodes[1:4]:
        there = rng.random(one.length) < 0.6
        values[one.first_step] = np.where(there, rng.normal(size=one.length).astype("f4"), np.nan)
        store.write_column("advantage", one.ids[there], values[one.first_step][there])
    judged = episodes[3].ids[[0, 29]]
    store.write_column("judge", judged, np.array([[1, -2], [3, -4]]))
    folder = tmp_path / "store"
    if kind == "version":
        folder = store.snapshot("one").folder
        store.write_column("advantage", episodes[0].ids, np.zeros(5))
    elif kind == "checkpoint":
        store.checkpoint(folder := tmp_path / "saved")
    store.flush()
    if kind == "closed":
        store.close()
    with serving(folder) as server:
        columns = server.get("0/overview")["memory"]["columns"]
        assert columns == [{"name": "advantage", "shape": [], "dtype": "float32"},
                           {"name": "judge", "shape": [2], "dtype": "int16"}]  # fmt: skip
        for one in episodes:
            found = curves(server, one.first_step)
            assert list(found)[:4] == ["reward", "advantage", "judge[0]", "judge[1]"]
            expected = values.get(one.first_step, np.full(one.length, np.nan))
            assert [np.nan if value is None else np.float32(value) for value in found["advantage"]] == pytest.approx(
                expected.tolist(), rel=1e-5, nan_ok=True
            )
            part = curves(server, one.first_step, begin=one.length // 2)
            assert part["advantage"] == found["advantage"][one.length // 2 :]
            marks = {0: 1, 29: 3} if one.first_step == episodes[3].first_step else {}
            assert found["judge[0]"] == [marks.get(step) for step in range(one.length)]
        last = episodes[3].first_step
        assert shown(server, last, 29)["judge"] == {"name": "judge", "text": "3 -4", "late": True}
        assert shown(server, last, 28)["judge"]["text"] == "–"
    store.close()


def test_columns_are_shown_as_they_change(tmp_path: Path) -> None:
    """Also of steps of a segment that is not full, and none of evicted, deleted or dropped ones."""
    store, episodes = written(tmp_path)
    with serving(tmp_path) as server:
        assert server.get("0/overview")["memory"]["columns"] == []
        version = server.get("0/status")["version"]
        store.add_column("mark", sw.Field((), "int8"))
        store.write_column("mark", episodes[-1].ids, np.arange(7))
        store.flush()
        server.watched[0].update()
        assert server.get("0/status")["version"] > version
        last = episodes[-1].first_step
        assert curves(server, last)["mark"] == list(range(7))
        store.write_column("mark", episodes[-1].ids[2:3], [9])
        store.flush()
        server.watched[0].update()
        assert curves(server, last)["mark"] == [0, 1, 9, 3, 4, 5, 6]
        store.delete(episodes=episodes[:1])
        server.watched[0].update()
        assert server.ask("/api/0/steps", lane=0, first=0).status == 410
        assert curves(server, episodes[1].first_step)["mark"] == [None]
        store.drop_column("mark")
        store.add_column("mark", sw.Field((), "float32"))
        store.write_column("mark", episodes[-1].ids[:1], [0.5])
        store.flush()
        server.watched[0].update()
        assert curves(server, last)["mark"] == [0.5, *[None] * 6]
    store.close()
    with sw.Store.open(tmp_path) as again, serving(tmp_path) as server:
        assert curves(server, last)["mark"] == [0.5, *[None] * 6]
        again.write_column("mark", again.episodes()[-1].ids[1:2], [1.5])
        again.flush()
        server.watched[0].update()
        assert curves(server, last)["mark"] == [0.5, 1.5, *[None] * 5]


def test_values_of_a_dropped_column_are_not_those_of_another_of_its_name(tmp_path: Path) -> None:
    """As a crash while the column's files are deleted may leave them."""
    store, episodes = written(tmp_path)
    store.add_column("mark", sw.Field((), "int8"))
    store.write_column("mark", episodes[0].ids, np.arange(5))
    store.flush()
    left = {path: path.read_bytes() for path in (tmp_path / "columns").iterdir()}
    store.drop_column("mark")
    store.add_column("mark", sw.Field((), "int8"))
    store.close()
    for path, content in left.items():
        if not path.exists():
            path.write_bytes(content)
    with serving(tmp_path) as server:
        assert len(left) == 2 and curves(server, 0)["mark"] == [None] * 5


def test_damaged_columns_are_named(tmp_path: Path) -> None:
    store, episodes = written(tmp_path)
    store.add_column("mark", sw.Field((), "int8"))
    store.write_column("mark", episodes[0].ids, np.arange(5))
    store.close()
    for path in (tmp_path / "columns").iterdir():
        content = path.read_bytes()
        for changed in (content[:-40], b"", b"\xff" * len(content), content.replace(b"mark", b"kram")):
            path.write_bytes(changed)
            with serving(tmp_path) as server:
                told = server.get("0/overview")["memory"]
                answers = [server.ask(f"/api/0/{name}", lane=0, first=0, step=1) for name in ("steps", "step")]
                assert told["steps"] == sum(LENGTHS)
                if told["columns"]:
                    assert {one.status for one in answers} <= {200, 410}
                else:
                    assert "columns added later" in told["columns_trouble"] and {one.status for one in answers} == {200}
        path.write_bytes(content)
    (tmp_path / "columns").rename(tmp_path / "moved")
    (tmp_path / "columns").symlink_to("moved")
    with serving(tmp_path) as server:
        told = server.get("0/overview")["memory"]
        assert told["columns"] == [] and "a link" in told["columns_trouble"]
