"""Kinds of environments that a recorder takes: resetting and stepping each, and the classes of its wrapper."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

MODES = ("NextStep", "SameStep", "Disabled")

Result = tuple[Any, Any, Any, Any, Any]
"""Observation, reward, terminated, truncated and info of a step, as Gymnasium has them."""

WRAPPER_MODES = {"Autoreset": "NextStep", "AutoResetWrapper": "SameStep"}
"""Mode of a single environment by the name of Gymnasium's wrapper that resets it: of 1.x, and of 0.29."""


class GymnasiumKind:
    """Environment or vector as Gymnasium defines them, or with the same ``step``.

    Attributes:
        mode: how it resets finished sub-environments, one of ``MODES``.
        assumed: whether the mode is assumed, as the environment does not declare it.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.mode, self.assumed = _autoreset(env)

    def reset(self, seed: Any, options: Any) -> tuple[Any, Any, Any]:
        """Reset; return the observation, the seed of each lane (or of the first, or ``None``), and the result."""
        result = self.env.reset(seed=seed, options=options)
        obs, _ = result
        return obs, seed, result

    def outcome(self, result: Any) -> Result:
        """Return the result of a step in Gymnasium's form."""
        found: Result = result
        return found

    def env_id(self) -> Any:
        """Return the environment's id, or ``None``."""
        return getattr(getattr(self.env, "spec", None), "id", None)


class VecEnvKind(GymnasiumKind):
    """Vector of Stable-Baselines3: a step returns four values, ``reset`` one, and seeds are given beforehand."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.mode, self.assumed = "SameStep", False

    def reset(self, seed: Any, options: Any) -> tuple[Any, Any, Any]:
        if seed is not None:
            self.env.seed(seed)
        if options is not None:
            self.env.set_options(options)
        seeds = list(getattr(self.env.unwrapped, "_seeds", [None] * self.env.num_envs))  # forgotten by reset
        obs = self.env.reset()
        return obs, None if None in seeds else seeds, obs

    def outcome(self, result: Any) -> Result:
        obs, reward, done, infos = result
        done = np.asarray(done, np.bool_)
        truncated = done & [bool(info.get("TimeLimit.truncated", False)) for info in infos]
        return obs, reward, done & ~truncated, truncated, infos

    def env_id(self) -> Any:
        envs = getattr(self.env.unwrapped, "envs", None)  # environments in other processes are not asked
        return getattr(getattr(envs[0], "spec", None), "id", None) if envs else None


def is_vector(env: Any) -> bool:
    """Return whether ``env`` steps several environments; wrappers of 0.29 have ``num_envs`` around a single one too."""
    return hasattr(env.unwrapped if _is_a(env, "gymnasium", "Env") else env, "num_envs")


def is_vec_env(env: Any) -> bool:
    """Return whether ``env`` is a vector of Stable-Baselines3, whose spaces are those of one environment."""
    return any(one.__name__ == "VecEnv" for one in type(env).__mro__)


def kind_of(env: Any) -> GymnasiumKind:
    """Return how to speak to ``env``.  Raises: ValueError: a vector with an unknown autoreset mode."""
    return VecEnvKind(env) if is_vec_env(env) else GymnasiumKind(env)


def _autoreset(env: Any) -> tuple[str, bool]:
    """Return how finished environments are reset, "NextStep", "SameStep" or "Disabled", and whether that is assumed.

    An attribute of the instance takes precedence over ``env.metadata["autoreset_mode"]``: ale-py keeps its metadata on
    the class, where instances overwrite one another's. A single environment without either is "Disabled", but for
    Gymnasium's wrapper that resets it. A vector without either is of Gymnasium 1.0, "NextStep", or taken for one of
    before, "SameStep".

    Raises:
        ValueError: an unknown mode.
    """
    inner = getattr(env, "unwrapped", env)
    found = getattr(inner, "autoreset_mode", None) or (getattr(env, "metadata", None) or {}).get("autoreset_mode")
    if found is None:
        if not is_vector(env):
            names = (WRAPPER_MODES.get(type(layer).__name__) for layer in layers(env))
            return next((mode for mode in names if mode is not None), "Disabled"), False
        gymnasium = sys.modules.get("gymnasium")
        version = getattr(gymnasium, "__version__", "") if _is_a(env, "gymnasium.vector", "VectorEnv") else ""
        return ("NextStep", False) if version.startswith("1.0") else ("SameStep", True)
    name = str(getattr(found, "value", found))
    if name not in MODES:
        raise ValueError(
            f"Recorder: {type(inner).__name__} has autoreset mode {found!r}, expected one of {MODES} in "
            "env.metadata['autoreset_mode'] (gymnasium.vector.AutoresetMode)"
        )
    return name, False


def layers(env: Any) -> Iterator[Any]:
    """Yield an environment and the environments that it wraps."""
    while env is not None:
        yield env
        env = getattr(env, "__dict__", {}).get("env")


def steps_in_halves(env: Any) -> bool:
    """Return whether ``step_async`` and ``step_wait`` of ``env`` do all that its ``step`` does.

    Asked of its class: a wrapper that only forwards unknown attributes would be bypassed, and so would one that
    overrides ``step`` alone.
    """
    where = {}
    for name in ("step", "step_async", "step_wait"):
        found = [place for place, one in enumerate(type(env).__mro__) if name in vars(one)]
        if not found:
            return False
        where[name] = found[0]
    return where["step_wait"] <= where["step"]


def _is_a(env: Any, module: str, name: str) -> bool:
    """Return whether ``env`` is an instance of a class of a module, which is not imported for that."""
    found = getattr(sys.modules.get(module), name, None)
    return isinstance(found, type) and isinstance(env, found)


def framework_wrapper(env: Any) -> type | None:
    """Return the class of wrappers in ``env``'s framework, Gymnasium or SB3; ``None``: it is of neither."""
    found: Any = None
    if _is_a(env, "stable_baselines3.common.vec_env", "VecEnv"):
        found = sys.modules["stable_baselines3.common.vec_env"].VecEnvWrapper
    elif _is_a(env, "gymnasium.vector", "VectorEnv"):
        vector = sys.modules["gymnasium.vector"]
        found = getattr(vector, "VectorWrapper", None) or vector.VectorEnvWrapper  # the latter in 0.29
    elif _is_a(env, "gymnasium", "Env"):
        found = sys.modules["gymnasium"].Wrapper
    return found if isinstance(found, type) else None


FORWARDED = ("metadata", "spec", "render_mode", "np_random")
"""Attributes of the environment itself. Gymnasium 0.29's wrapper of vectors has those of ``Env`` instead; other
wrappers have a ``spec`` of their own, but no environment can be made from one with a store in it."""

_CLASSES: dict[tuple[type, type], type] = {}


def wrapper_class(cls: type, env: Any) -> type:
    """Return a subclass of ``cls`` that is also a wrapper of ``env``'s framework, so that other wrappers and algorithms
    take it; ``cls`` itself where there is none.
    """
    base = framework_wrapper(env)
    if base is None or issubclass(cls, base):
        return cls
    if (cls, base) not in _CLASSES:
        body: dict[str, Any] = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
        if hasattr(base, "__del__"):  # of 0.29, which would close the environment
            body["__del__"] = lambda self: None
        for name in FORWARDED:
            owner = next((one.__name__ for one in base.__mro__ if name in vars(one)), "")
            if owner in ("Env", "VectorEnv") or (owner and name == "spec"):
                body[name] = property(_forward(name))
        _CLASSES[cls, base] = types.new_class(cls.__name__, (cls, base), exec_body=lambda made: made.update(body))
    return _CLASSES[cls, base]


def _forward(name: str) -> Callable[[Any], Any]:
    return lambda wrapper: getattr(wrapper.env, name)
