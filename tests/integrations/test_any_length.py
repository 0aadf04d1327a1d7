"""Spaces whose values have any length, which buffers of other frameworks refuse."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest

from sharpwave.integrations import cleanrl, sb3

BOX, MISSION = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Text(9)


@pytest.mark.parametrize("buffer", [cleanrl.ReplayBuffer, sb3.ReplayBuffer], ids=["cleanrl", "sb3"])
@pytest.mark.parametrize(
    ("obs", "action", "part"),
    [
        (gym.spaces.Dict(state=BOX, mission=MISSION), BOX, r"obs\['mission'\] \(Text\)"),
        (gym.spaces.Dict(state=BOX, tokens=gym.spaces.Sequence(BOX)), BOX, r"obs\['tokens'\] \(Sequence\)"),
        (gym.spaces.Graph(BOX, None), BOX, r"obs \(Graph\)"),
        (BOX, MISSION, r"action \(Text\)"),
    ],
    ids=["text", "sequence", "graph", "action"],
)
def test_spaces_of_any_length_are_refused_by_name(buffer: Any, obs: Any, action: Any, part: str) -> None:
    with pytest.raises(ValueError, match=f"ReplayBuffer: {part} has values of any length, .*use sharpwave.Recorder"):
        buffer(100, obs, action)
