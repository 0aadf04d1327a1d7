"""Trained policies: loaded from a run, a folder or a file, asked for actions, and saved for programs without the run.

A policy's file has its weights and, as JSON, all that making the agent again takes: algorithm, settings and spaces. So
neither an environment nor a store is made to load it. A run's ``best.safetensors`` is such a file.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Dict, Space
from torch import Tensor

from sharpwave.agents.learner import NetworkAgent
from sharpwave.agents.protocol import Agent, State
from sharpwave.agents.space_tables import space_of
from sharpwave.configuration import KIND, from_table
from sharpwave.errors import NotRegisteredError
from sharpwave.json_values import sealed
from sharpwave.training import folder as files
from sharpwave.training import setup
from sharpwave.training.atomic_files import make_folder, write_bytes
from sharpwave.training.checkpoints import NO_STATE, load_run_policy, save_policy
from sharpwave.training.model_card import model_card
from sharpwave.training.own_environments import with_environment
from sharpwave.training.policy_files import (
    CARD,
    DESCRIPTION,
    POLICY,
    WEIGHTS,
    agent_of,
    begun,
    describe_run,
    description,
    read_file,
    read_folder,
)
from sharpwave.training.recipes.recipe import Environment, Gymnasium, OwnEnvironment, Recipe, environment_settings

SUFFIXES = (".sharpwave", ".safetensors")
"""Endings of a single file's name; any other name but those of ``OTHER_SUFFIXES`` is a folder's."""
OTHER_SUFFIXES = (".onnx", ".pt2", ".zip", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".bin", ".npz", ".h5", ".json")
"""Endings of other kinds of files, which no folder's name has by intent."""


class Policy:
    """Policy that chooses actions: an agent that acts and does not learn.

    Attributes:
        agent: the agent, with the policy's weights.
        observation_space, action_space: of one environment.
        env: settings of the environment that it was trained in; None: not known.
        figures: figures of its training: ``steps``, and of a best policy its held-out scores.
        checkpoint: which of a run's policies it is: "best", "last" or the steps of a checkpoint; "": of none.
    """

    def __init__(
        self,
        agent: Agent,
        observation_space: Space[Any],
        action_space: Space[Any],
        *,
        stacks: Sequence[int] = (),
        env: Environment | None = None,
        figures: Mapping[str, Any] | None = None,
        checkpoint: str = "",
        trust: bool = True,
    ) -> None:
        self.agent, self.observation_space, self.action_space = agent, observation_space, action_space
        self.env, self.figures, self.checkpoint = env, {"steps": 0, **(figures or {})}, checkpoint
        self._stacks, self._trust = stacks, trust
        self._told = False

    def __repr__(self) -> str:
        name = "" if self.env is None else f" of {self.env.name}"
        return f"<Policy: {self.agent.settings.kind}{name}, of step {self.steps:,}>"

    @property
    def steps(self) -> int:
        """Environment steps after which it was saved."""
        return int(self.figures["steps"])

    # load

    @classmethod
    def load(
        cls,
        path: Path | str,
        checkpoint: str | None = None,
        *,
        device: str = "auto",
        seed: int = 0,
        trust: bool = False,
    ) -> Self:
        """Load a policy. No code of the file's is run, and no environment is made.

        Args:
            path: a run's folder, a folder or a file that ``save`` wrote, or a run's ``best.safetensors``.
            checkpoint: of a run: "best", the policy with the best held-out evaluation, "last", that of the newest
                checkpoint, or the steps of a checkpoint; None: the best if there is one, else the last.
            seed: of its exploration.
            trust: allow importing the module that the environment's name refers to, when that is made.
        Raises:
            ValueError: there is no policy, or it is damaged, or too large.
            NotRegisteredError: a program registered its agent, and this one has not.
            NewerVersionError: a later release wrote it.
        """
        path = Path(os.path.expanduser(path))
        if path.is_dir() and not (path / DESCRIPTION).is_file():
            chosen = files.chosen_checkpoint(path, checkpoint)
            recipe = files.read_config(path, trust=True).recipe  # which imports nothing
            weights, figures = load_run_policy(
                path, chosen, lambda: agent_of(describe_run(path, recipe, None, trust), "cpu", seed)
            )
            figures[POLICY] = describe_run(path, recipe, figures.get(POLICY), trust)
        else:
            chosen = ""
            if checkpoint is not None:
                raise ValueError(f"checkpoint: got {checkpoint!r} for {str(path)!r}, which is no run's folder")
            weights, figures = read_folder(path) if path.is_dir() else read_file(path)
        about = figures.pop(POLICY)
        try:
            return cls._made(about, weights, figures, chosen, device, seed, trust)
        except NotRegisteredError as error:
            raise NotRegisteredError(
                f"policy {str(path)!r}: {error}. Import the module that registers it first, or let its package name it "
                "in an entry point. Nothing is damaged"
            ) from error
        except NO_STATE as error:
            raise ValueError(f"policy {str(path)!r} cannot be loaded: {error}") from error

    @classmethod
    def _made(
        cls,
        about: Mapping[str, Any],
        weights: Mapping[str, Tensor],
        figures: dict[str, Any],
        checkpoint: str,
        device: str,
        seed: int,
        trust: bool,
    ) -> Self:
        agent = agent_of(about, device, seed, weights)
        env = about["env"]
        if env is not None:
            env = from_table(environment_settings(env[KIND])(), env)
        return cls(
            agent,
            space_of(about["observation"]),
            space_of(about["action"]),
            stacks=about["stacks"],
            env=env,
            figures=figures,
            checkpoint=checkpoint,
            trust=trust,
        )

    # act

    def act(self, obs: Any, *, explore: bool = False) -> Any:
        """Return the action for an observation, or the actions for observations [N, ...] of several environments.

        Args:
            explore: act as the agent explored when the policy was saved, by random actions or noise.
        Raises:
            ValueError: the observation is not of ``observation_space``, or the agent remembers earlier steps.
        """
        if self.agent.remembers:
            raise ValueError(
                f"act: {self.agent.settings.kind} is recurrent; use "
                "action, state = policy.predict(obs, state, episode_start, reward=...), which returns its state"
            )
        return self.predict(obs, deterministic=not explore)[0]

    def predict(
        self,
        observation: Any,
        state: State = None,
        episode_start: Any = None,
        deterministic: bool = False,
        *,
        reward: Any = None,
    ) -> tuple[Any, State]:
        """Return actions and the agent's recurrent state. The signature is that of Stable-Baselines3's algorithms.

        Args:
            observation: of one environment, or of several, [N, ...].
            state: the state that the last call returned; None: all episodes begin.
            episode_start: bool, or bool [N]: episodes that begin with this observation; None: none, after the first.
            deterministic: choose the best actions. Otherwise the agent explores as when the policy was saved.
            reward: the previous reward, float or float [N], for recurrent agents; None: 0, with which agents trained on
                previous rewards may act worse.
        Raises:
            ValueError: the observation is not of ``observation_space``, or other arguments are of another number.
        """
        obs, single = _batch(observation, self.observation_space)
        lanes = len(next(iter(obs.values())) if isinstance(obs, dict) else obs)
        if lanes == 0:
            raise ValueError(f"observation: got none, expected one or more of {self.observation_space}")
        if state is None or not self.agent.remembers:
            state = self.agent.begin(lanes)
        else:
            _check_state(state, self.agent.begin(lanes))
            begun = _each("episode_start", False if episode_start is None else episode_start, lanes, np.bool_)
            if reward is None and not self._told and not begun.all() and "reward" in self._memory():
                self._told = True
                warnings.warn(
                    f"predict: {self.agent.settings.kind} takes the previous reward, and got none, so it sees 0. "
                    "Give reward=",
                    UserWarning,
                    stacklevel=2,
                )
            rewards = _each("reward", 0.0 if reward is None else reward, lanes, np.float32)
            state = self.agent.observe(state, rewards, begun)
        acted = self.agent.act(obs, state, self.steps, explore=not deterministic)
        return acted.action[0] if single else acted.action, acted.state if self.agent.remembers else None

    def _memory(self) -> Mapping[str, Any]:
        return self.agent.memory() if isinstance(self.agent, NetworkAgent) else {}

    # its environment

    def env_settings(self, env: Any = None) -> Environment:
        """Return the settings of the environment that it was trained in: its frames, stacks and masks.

        Args:
            env: another environment, as ``sharpwave.train`` takes it, for these settings; None: that of its training.
        Raises:
            ValueError: it is not known, or its name would import a module without ``trust``.
        """
        own = self.env
        if env is not None:
            return with_environment(Recipe(env=Gymnasium() if own is None else own), env).env
        if own is None:
            raise ValueError("env: the policy names no environment; give one")
        if isinstance(own, OwnEnvironment) and not own.factory:
            raise ValueError(f"env: {own.name!r} was an object of the program that trained the policy; give one")
        if not self._trust:
            files.check_imports("the policy", Recipe(env=own))
        return own

    def check_env(self, env: setup.Env) -> None:
        """Check that the policy can act in a vector of environments.  Raises: ValueError."""
        pairs = (
            ("observations", self.observation_space, env.single_observation_space),
            ("actions", self.action_space, env.single_action_space),
        )
        for what, own, given in pairs:
            if _form(own) != _form(given) or (what == "actions" and own != given):
                raise ValueError(f"the environment's {what} are {given}, expected the {own} of the policy's training")

    # save

    def save(self, path: Path | str) -> Path:
        """Write the policy, for programs that have neither the run nor its environment; an older file is replaced.

        Args:
            path: ``NAME.sharpwave``, a single file; or the name of a folder, which gets ``policy.safetensors``, the
                same file, ``policy.json``, its description for other programs, and ``README.md``, a model card. Those
                of an earlier policy are replaced.
        Returns:
            the path.
        Raises:
            ValueError: a name with the ending of another kind of file, or a folder of something else.
            OSError: it cannot be written.
        """
        path = Path(os.path.expanduser(path))
        about = description(self.agent.settings, self.observation_space, self.action_space, self._stacks, self.env)
        figures = {**self.figures, POLICY: about}
        weights = self.agent.policy_tensors(explore=True)  # its only ones: those that were loaded
        if path.suffix in OTHER_SUFFIXES:
            raise ValueError(
                f"save: got {path.name!r}, expected a name that ends in {SUFFIXES[0]}, for one file, or that of a "
                "folder; export writes .onnx and .pt2"
            )
        if path.suffix in SUFFIXES:
            save_policy(path, weights, figures)
            return path
        if path.is_dir() and not (path / DESCRIPTION).is_file() and not begun(path):
            raise ValueError(f"save: {str(path)!r} holds other files; give the name of a new folder")
        card = model_card(self).encode()
        make_folder(path)
        save_policy(path / WEIGHTS, weights, figures)
        write_bytes(path / CARD, card)
        # last: a folder without it is no policy's
        write_bytes(path / DESCRIPTION, sealed({"version": files.VERSION, **figures}, indent=2))
        return path

    def export(self, path: Path | str) -> Path:
        """Write the policy as a program of ONNX or ``torch.export``, for machines without this package.

        It takes raw observations, [N, ...] for any N, and returns the environment's actions without exploring. A dict
        of observations has an input for each part, another one the input ``obs``. Agents that remember take their
        memory, zeros where an episode begins, and the step's ``reward``, and return the next memory: R2D2 ``core`` and
        ``next_core``. Networks compute in float32.

        Args:
            path: ``NAME.onnx`` (extra ``export``), or ``NAME.pt2`` for ``torch.export.load``; an older file is
                replaced.
        Raises:
            ValueError: another ending, or an agent that acts by more than its networks.
            ModuleNotFoundError: a package is missing.
            OSError: it cannot be written.
        """
        from sharpwave.training.exported import export_onnx, export_torch

        path = Path(os.path.expanduser(path))
        if path.suffix not in (".onnx", ".pt2"):
            raise ValueError(f"export: got {path.name!r}, expected a name that ends in .onnx or .pt2")
        (export_onnx if path.suffix == ".onnx" else export_torch)(self, path)
        return path


# Arguments


def _each(name: str, given: Any, lanes: int, dtype: type[np.generic]) -> npt.NDArray[Any]:
    """Return an argument as [lanes], given for all environments or for each.  Raises: ValueError."""
    try:
        return np.broadcast_to(np.asarray(given, dtype), lanes)
    except (TypeError, ValueError) as error:
        shape = f"shape {np.shape(given)}" if isinstance(given, np.ndarray | list | tuple) else repr(given)[:80]
        raise ValueError(
            f"{name}: got {shape}, expected one {dtype.__name__}, or one for each of {lanes} observations"
        ) from error


def _check_state(given: Any, expected: Any) -> None:
    """Check that a state is of as many environments as there are observations.  Raises: ValueError."""
    lanes = _lanes(expected)
    if lanes is None:  # the state of an agent that a program registered, which checks it itself
        return
    said = f"expected the state that the last call of predict returned, for {lanes} observations"
    if not isinstance(given, type(expected)):
        raise ValueError(f"state: got {type(given).__name__}, {said}; None where all episodes begin")
    if _lanes(given) != lanes:
        raise ValueError(f"state: got a state of {_lanes(given)} observations, {said}")
    found, own = (np.shape(getattr(one, "core", ())) for one in (given, expected))
    if found != own:
        raise ValueError(f"state: got a memory of shape {found}, expected {own}: it is another policy's")


def _lanes(state: Any) -> int | None:
    lanes = getattr(state, "lanes", None)
    return lanes.stop - lanes.start if isinstance(lanes, slice) else None


def _form(space: Space[Any]) -> Any:
    """Return what observations of a space share: shape and dtype of each part, and numbers of categories."""
    if isinstance(space, Dict):
        return {name: _form(part) for name, part in space.spaces.items()}
    sizes = getattr(space, "n", None), str(getattr(space, "nvec", ""))
    return space.shape, str(space.dtype), sizes  # not its class: an environment may have one of its own


def _batch(obs: Any, space: Space[Any]) -> tuple[Any, bool]:
    """Return an observation as one of several environments, [N, ...], and whether it was of one.

    Raises:
        ValueError: it is not of the space; the message names both.
    """
    if not isinstance(space, Dict):
        array, single = _rows("", obs, space)
        return array, single
    flat = dict(_flat(obs)) if isinstance(obs, (Mapping, tuple)) else None
    if flat is None or flat.keys() != space.spaces.keys():
        got = f"the parts {', '.join(map(repr, flat))}" if flat is not None else type(obs).__name__
        raise ValueError(f"observation: got {got}, expected a dict with {', '.join(map(repr, space.spaces))}: {space}")
    found = {name: _rows(name, flat[name], part) for name, part in space.spaces.items()}
    kinds = {name: (len(array), single) for name, (array, single) in found.items()}
    if len(set(kinds.values())) > 1:
        shapes = {name: np.shape(flat[name]) for name in found}
        raise ValueError(f"observation: got parts of the shapes {shapes}, expected those of {space}, or N of each")
    return {name: array for name, (array, _) in found.items()}, next(iter(kinds.values()))[1]


def _flat(obs: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the arrays of nested dicts and tuples by key, joined as the environments of a run join them."""
    if not isinstance(obs, (Mapping, tuple)):
        yield key, obs
        return
    for name, part in obs.items() if isinstance(obs, Mapping) else enumerate(obs):
        yield from _flat(part, f"{key}/{name}".removeprefix("/"))


def _rows(name: str, obs: Any, space: Space[Any]) -> tuple[npt.NDArray[Any], bool]:
    shape, dtype = space.shape or (), np.dtype(space.dtype)
    what = f"observation {name!r}" if name else "observation"
    try:
        array = np.asarray(obs)
    except ValueError as error:  # lists of different lengths
        raise ValueError(f"{what}: got {type(obs).__name__}, expected an array of {space}: {error}") from error
    fits = array.dtype.kind in "bui" and dtype.kind in "buif"  # what holds the same numbers is taken
    cast = array.astype(dtype, copy=False) if fits or array.dtype.kind == "f" == dtype.kind else array
    alike = cast.dtype == dtype and (not fits or cast is array or bool((cast == array).all()))
    single = array.shape == shape
    if not alike or not (single or array.shape[1:] == shape):
        raise ValueError(
            f"{what}: got shape {array.shape} {array.dtype}, expected {shape} {dtype}, or {('N', *shape)} for N "
            f"environments: {space}".replace("'N'", "N")
        )
    return (cast[None], True) if single else (cast, False)
