"""Contenders of ``updates.py --continuous``: turns, ratios, and the file of several runs."""

import json
import sys

import continuous_updates
import pytest

pytestmark = pytest.mark.timeout(180)


def test_contenders_take_turns_and_other_algorithms_stay_in_the_file(tmp_path, monkeypatch, capsys):
    path, kept = tmp_path / "continuous_updates.json", {"algorithm": "td3"}
    path.write_text(json.dumps({"rows": [kept, {"algorithm": "sac"}]}))
    contenders = {"float32": {"algorithm": "SAC", "settings": {"hidden_units": 8}}, "SBX": {"algorithm": "none"}}
    monkeypatch.setattr(continuous_updates, "CONTENDERS", {"sac": contenders})
    monkeypatch.setattr(continuous_updates, "PEERS", ("float32",))
    continuous_updates.compare(["sac"], sys.executable, 2, 1, tmp_path)
    before, own = json.loads(path.read_text())["rows"]  # what could not begin is left out
    assert before == kept and own["milliseconds"] > 0
    assert own | {"milliseconds": 0} == {
        "algorithm": "sac", "contender": "float32", "milliseconds": 0, "ratios": {"float32": 1.0}
    }  # fmt: skip
    assert "| sac | float32 |" in capsys.readouterr().out
