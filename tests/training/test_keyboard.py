"""A person at the keyboard, as far as a window that nobody sees allows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sharpwave.envs import AtariSettings, make_env
from sharpwave.training.recording import Keyboard, record

pygame = pytest.importorskip("pygame")


@pytest.fixture(autouse=True)
def unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")


def post(kind: int, key: int) -> None:
    pygame.event.post(pygame.event.Event(kind, key=key))


def test_number_keys_are_actions_and_the_environment_waits(tmp_path, monkeypatch) -> None:
    env = make_env("sharpwave/Lock-v0", 1, render=True)
    player = Keyboard(env)
    assert "0 to 3" in player.help
    obs, _ = env.reset(seed=2)
    digits, pressed, waited = obs[0, :-8].reshape(-1, 4).argmax(axis=1).tolist(), 0, list[int]()

    def key() -> int:
        return (digits[pressed % len(digits)] + pressed) % 4

    def wait(milliseconds: int) -> None:  # the person presses the key after a while
        nonlocal pressed
        waited.append(milliseconds)
        if len(waited) % 3 == 0:
            post(pygame.KEYDOWN, pygame.K_0 + key())
            pressed += 1

    monkeypatch.setattr(pygame.time, "wait", wait)
    assert player.act(obs).tolist() == digits[:1] and len(waited) == 3
    pressed = 0
    found = record(env, player, tmp_path / "demos", episodes=1, seed=2)
    assert [(one.reward, one.steps) for one in found.episodes] == [(1.0, 8)] and len(waited) == 27
    env.close()
    player.close()


def test_atari_games_go_on_while_keys_are_held() -> None:
    env: Any = make_env("pong", 1, AtariSettings(), render=True)
    assert env.action_names == ("NOOP", "FIRE", "RIGHT", "LEFT", "RIGHTFIRE", "LEFTFIRE")
    player = Keyboard(env)
    player._fps = 10_000
    obs, _ = env.reset(seed=0)

    def act() -> str:
        return env.action_names[int(player.act(obs)[0])]

    assert act() == "NOOP"
    post(pygame.KEYDOWN, pygame.K_LEFT)
    assert act() == act() == "LEFT"
    post(pygame.KEYDOWN, pygame.K_SPACE)
    assert act() == "LEFTFIRE"
    post(pygame.KEYUP, pygame.K_LEFT)
    assert act() == "FIRE"
    post(pygame.KEYDOWN, pygame.K_UP)  # a key that the game has not
    post(pygame.KEYUP, pygame.K_SPACE)
    assert act() == "NOOP"
    post(pygame.KEYDOWN, pygame.K_ESCAPE)
    with pytest.raises(StopIteration):
        act()
    env.close()
    player.close()


def test_closing_the_window_ends_the_recording(tmp_path) -> None:
    env = make_env("sharpwave/TMaze-v0", 1, render=True)
    player = Keyboard(env)
    pygame.event.post(pygame.event.Event(pygame.QUIT))
    assert record(env, player, tmp_path / "demos", episodes=5, seed=0).episodes == []
    assert not (tmp_path / "demos").exists()
    env.close()
    player.close()


def test_environments_without_pictures_are_refused() -> None:
    env = make_env("sharpwave/TMaze-v0", 1)
    player = Keyboard(env)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="has no pictures to show; use --script"):
        player.act(np.zeros((1, 3)))
    env.close()
    player.close()
