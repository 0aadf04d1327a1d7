"""Recorder: an environment wrapper that appends steps to a store."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from sharpwave.arguments import as_array, is_integer
from sharpwave.arrays import Bools, Ints
from sharpwave.environment_kinds import Result, framework_wrapper, is_vector, kind_of, steps_in_halves, wrapper_class
from sharpwave.environment_spec import info_spaces
from sharpwave.errors import not_to_be_copied
from sharpwave.field_values import copied_rows
from sharpwave.format.annotations import BROKEN_OFF
from sharpwave.nesting import map_leaves
from sharpwave.observations import Frames, Observations
from sharpwave.sampling.limiters import check_timeout
from sharpwave.segment_writer import SegmentWriter
from sharpwave.step_infos import final_frames, info_rows, statistics_of
from sharpwave.store import Store
from sharpwave.validation import check_names, step_values

_ASSUMED = (
    ". It does not say how it resets, so that of Gymnasium 0.29 was assumed; set env.metadata['autoreset_mode'] to "
    "'NextStep' if it resets with the step after an episode's end, to 'Disabled' if you reset it"
)
NUMBERS, FLAGS = (float, np.float64, np.float32, int), (bool, np.bool_)
"""Types of a single environment's rewards and flags that ``Store.append`` takes as they are."""
SCALARS = (np.generic, int, float)
"""Types of values that nobody can write into."""


class Recorder:
    """Environment wrapper that appends every step to a store.

    Works with a Gymnasium ``Env`` (lane ``first_lane``), and with vectors, which have a lane for each sub-environment:
    a ``VectorEnv`` of any autoreset mode, also of Gymnasium 0.29, ale-py's ``AtariVectorEnv``, and a ``VecEnv`` of
    Stable-Baselines3. It is itself one of these (``gymnasium.Wrapper``, ``VectorWrapper`` or ``VecEnvWrapper``), so
    that other wrappers and algorithms take it. Observations are passed through unchanged, and all other attributes of
    the environment are available. If the environment stacks frames and the field declares the same stack, only the
    newest frame is stored (``sharpwave.observations.Observations`` describes which observations fit a field). A row
    whose action the environment ignored because it was resetting (NextStep) is not a step and is not stored. Nor is the
    first row after a ``reset`` where an ``AsyncVectorEnv(shared_memory=False)`` may reset a lane again: where its
    episode had ended, or where a new recorder cannot know.

    A store's lanes are annotated with the environment's id and the seeds of ``reset`` (``Store.annotate``); an episode
    with the ``"statistics"`` that a wrapper below gives at its end, as Gymnasium's ``RecordEpisodeStatistics`` or SB3's
    ``Monitor``: return ``r``, length ``l``, seconds ``t``. They are the environment's, before rewards are changed, say.

    The store never holds a transition that did not happen, given true observations (docs/store/recording.md says which
    vectors give untrue final ones). A ``reset`` in mid-episode, of all lanes or by ``options={"reset_mask": ...}``,
    truncates the episode; the first ``reset`` of a recorder truncates the unfinished episodes that an earlier recorder
    left in its lanes (``Store.break_episode``). A step that the store refuses (for a reward that is not finite, a
    limiter's timeout, a full disk) breaks the episode off: the previous step is truncated, and the next one begins a
    new episode in the store, whose stacks begin there. In a vector, if only the values of some lanes are refused, the
    other lanes' steps are stored. The environment has stepped nevertheless: its results are ``error.result``.

    Args:
        env: the environment.
        store: the store, or a ``SegmentWriter``, to append to.
        first_lane: number of the first lane, for several environments on one store.

    Raises:
        TypeError: ``env`` is not an environment, or ``store`` is neither a ``Store`` nor a ``SegmentWriter``.
        ValueError: an invalid ``first_lane``, an unknown autoreset mode, or observations that do not fit the store's
            spec.
    """

    def __new__(cls, env: Any = None, *args: Any, **settings: Any) -> Recorder:
        """Make an object of a subclass that is also a wrapper of the environment's framework."""
        made: Recorder = object.__new__(wrapper_class(cls, env))
        return made

    def __init__(self, env: Any, store: Store | SegmentWriter, *, first_lane: int = 0) -> None:
        if not callable(getattr(env, "step", None)) or not callable(getattr(env, "reset", None)):
            raise TypeError(f"Recorder: env is {env!r}, expected an environment, such as gymnasium.make('CartPole-v1')")
        if not isinstance(store, (Store, SegmentWriter)):
            raise TypeError(
                f"Recorder: store is {store!r}, expected a sharpwave.Store or SegmentWriter; of "
                "a cluster, cluster.writer(lanes=...)"
            )
        if not is_integer(first_lane) or first_lane < 0:
            raise ValueError(f"Recorder: first_lane={first_lane!r}, expected an integer of at least 0")
        base: Any = framework_wrapper(env)
        if base is not None and isinstance(self, base):
            base.__init__(self, env)
        self.env = env
        self.store = store
        self._kind = kind_of(env)
        self.mode = self._kind.mode
        self._vector = is_vector(env)
        self._steps_async = steps_in_halves(env)
        self._begun: tuple[Any, Frames, float | None] | None = None
        inner = getattr(env, "unwrapped", env)
        # Without shared memory, workers of Gymnasium's AsyncVectorEnv (1.4) forget that they were reset: those whose
        # episode had ended ignore the next action and reset once more.
        self._resets_again = self.mode == "NextStep" and getattr(inner, "shared_memory", None) is False
        count = int(env.num_envs) if self._vector else 1
        if getattr(inner, "batch_size", count) != count and self._vector:
            raise ValueError(f"Recorder: batch_size={inner.batch_size} of {count} environments; step all at once")
        self._lanes = np.arange(first_lane, first_lane + count)
        self._lane, self._rows = int(first_lane), np.arange(count)
        self._observations = Observations(env, store.spec)
        if self.mode == "SameStep":
            store._log.boundaries.true_finals.update(self._lanes.tolist())
        self._obs: Frames = {}  # newest frames before the coming step, [lanes, *shape]; copies
        self._spare: Frames = {}  # memory for the frames after it
        self._resetting: dict[str, Any] = {}  # arguments of reset_async
        self._taken_over = False  # an earlier recorder's unfinished episodes were ended
        self._said: dict[int, dict[str, Any]] = {}  # annotations by row
        self._done = np.ones(count, np.bool_)  # the lane's episode has ended and no new one has begun
        self._lost = np.zeros(count, np.bool_)  # the environment raised: its observation is unknown
        # Steps of a single environment that stacks nothing take a short way.
        plain = not self._vector and not self._steps_async and self.mode == "Disabled" and self._observations.plain
        # Further fields of the spec that the environment's infos give.
        self._extra, self._ragged = store.spec.extra_names, store.spec.ragged_names
        self._in_infos = [name for name in self._extra if name in info_spaces(env) and name not in self._ragged]
        plain = plain and store.spec.array_action and not self._in_infos and not self._ragged
        self._plain: Any = store if plain and isinstance(store, Store) else None
        self._ready = False  # the coming step may take it
        self._stepping = False  # one that took it is not recorded yet: the observation is unknown
        self._watched: tuple[int, Frames] = 0, {}  # steps whose stacks are still to be checked, and the last stacks

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # not set yet: __init__ failed
            raise AttributeError(name)
        return getattr(self.env, name)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise not_to_be_copied(self)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """Call ``env.reset``; an episode that this breaks off is truncated at its last step.

        Raises:
            ValueError: a step has not been waited for; or the observations do not fit the spec, as for
                ``Store.extend``, or are padded differently than the store pads them.
        """
        if self._begun is not None:
            raise ValueError("Recorder.reset: a step has not been waited for; call step_wait() first")
        self._ready = False
        mask = (options or {}).get("reset_mask") if self._vector else None
        chosen = self._rows if mask is None else self._rows[np.array(mask, np.bool_)]
        for lane in (self._lanes[chosen] if self._taken_over else self._lanes).tolist():
            self.store.break_episode(lane)
        self._taken_over = True
        self._lost[chosen] = True
        obs, seed, result = self._kind.reset(seed, options)
        self._annotate(chosen.tolist(), seed)
        frames = self._observations.frames(obs)
        for name, array in frames.items():
            self.store.spec.fields[name].rows(name, array, len(self._lanes))
        self._observations.check_begun(obs, chosen)
        self._obs = {name: np.array(array) for name, array in frames.items()}
        self._watched = self.store.spec.context, self._stacks(obs)
        self._done[chosen] &= self._resets_again
        self._lost[chosen] = self._stepping = False
        self._ready = self._plain is not None
        return result

    def reset_async(self, **settings: Any) -> None:
        """Begin ``reset``, which ``reset_wait`` does: as Gymnasium's vectors have it."""
        self._resetting = settings

    def reset_wait(self, **_: Any) -> Any:
        """Call ``reset`` with the arguments of ``reset_async``."""
        return self.reset(**self._resetting)

    def _annotate(self, rows: list[int], seed: Any) -> None:
        """Annotate lanes with the environment's id, and with the seed that each was reset with."""
        if not isinstance(self.store, Store):
            return
        env = self._kind.env_id()
        for row in rows:
            mine = seed + row if is_integer(seed) else None if seed is None else seed[row]
            known = {"env": env, "seed": mine}
            said = {name: value for name, value in known.items() if value is not None}
            if self._said.get(row) == said:  # 20 us less for each of many short episodes
                continue
            with contextlib.suppress(TypeError, ValueError):  # too many lanes to annotate, or values that cannot be
                self.store.annotate(int(self._lanes[row]), said)
                self._said[row] = said

    def _annotate_ends(self, info: Any, rows: list[int]) -> list[int]:
        """Annotate episodes that end with this step with their statistics; return the rows with statistics."""
        found = {row: said for row in rows if (said := statistics_of(info, row if self._vector else None))}
        for row, said in found.items():
            self._annotate_episode(row, said)
        return list(found)

    def _forget_ends(self, rows: list[int]) -> None:
        """Remove statistics from the lane's next episode, if their own episode has no step in the store."""
        for row in rows:
            self._annotate_episode(row, None)

    def _annotate_episode(self, row: int, statistics: dict[str, Any] | None) -> None:
        self._annotate_lane(int(self._lanes[row]), {"statistics": statistics})

    def _annotate_lane(self, lane: int, said: dict[str, Any]) -> None:
        with contextlib.suppress(TypeError, ValueError):  # too large
            if isinstance(self.store, Store):
                self.store.annotate(lane, said, episode=True)
            else:
                self.store.annotate(lane, said)

    def step(self, action: Any, *, timeout: float | None = None, **fields: Any) -> Any:
        """Call ``env.step`` and record the step.

        Args:
            timeout: seconds to wait for rate limiters, as for ``Store.extend``.
            fields: values of the spec's further fields for this step; with a leading axis for a vector environment.
                Fields in the environment's ``metadata["info_fields"]`` may be left out: their values are then in the
                step's info under their name, such as rewards of several agents.

        Raises:
            ValueError: before the first reset, after an episode's end, after the environment raised, or for an invalid
                ``timeout``.
            KeyError: an unknown field, or a missing one; the environment was not stepped.
            ValueError, TypeError, LimiterTimeoutError, OSError, MemoryError: from ``Store.extend``: the environment has
                stepped, but the step is not stored. ``error.result`` is the result of the environment's step, and the
                next step begins an episode in the store. If only some lanes of a vector were refused, the message
                names them, and the other lanes' steps are stored.
        """
        if not self._ready or timeout is not None:
            return self._step_in_halves(action, timeout, fields)
        # One environment, whose observation is an array that is stored whole: 2 us beside the environment's.
        if fields or self._extra or not isinstance(action, SCALARS):
            action, fields = self._copied(action, fields)
        else:
            fields["action"] = action
        # Until all is recorded: KeyboardInterrupt may be raised between any two lines.
        self._stepping, self._ready = True, False
        try:
            result: Result = self.env.step(action)
        except BaseException:
            self._break_off(self._lanes)
            raise
        try:
            obs, reward, terminated, truncated, _ = result
            if not (terminated or truncated):
                before, after = self._obs["obs"], self._spare.get("obs")
                record = self._plain._writing.record
                if record(self._lane, before, after, obs, fields, reward, terminated, truncated) >= 0:
                    self._obs, self._spare = self._spare, self._obs
                    self._stepping, self._ready = False, True
                    return result
            error = self._record_one(result, fields)
            self._stepping, self._ready = False, not self._done[0]
        except BaseException as unfit:
            error = unfit
        if error is not None:
            raise self._with_result(error, result)
        return result

    def _step_in_halves(self, action: Any, timeout: float | None, fields: dict[str, Any]) -> Any:
        try:
            self.step_async(action, timeout=timeout, **fields)
            return self.step_wait()
        except Exception:
            raise
        except BaseException:  # such as KeyboardInterrupt, possibly between the two calls
            if not self._steps_async:
                self._begun = None
            raise

    def _copied(self, action: Any, fields: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Copy the action for the environment, and for the store with the values of further fields: as in
        ``step_async``.  Raises: KeyError: an unknown field, or a missing one."""
        check_names(fields, self._extra)
        given = {
            name: value if isinstance(value, SCALARS) else np.array(as_array(name, value))
            for name, value in {"action": action, **fields}.items()
        }
        return action.copy() if isinstance(action, np.ndarray) else action, given

    def _record_one(self, result: Result, given: dict[str, Any]) -> BaseException | None:
        """Store a step of one environment that ends its episode, or that ``record`` leaves; return its error."""
        obs, reward, terminated, truncated, info = result
        before, after = self._obs["obs"], self._spare.get("obs")
        if not (
            after is not None
            and type(obs) is np.ndarray
            and (obs.shape, obs.dtype) == (before.shape[1:], before.dtype)
            and (type(reward) in NUMBERS and type(terminated) in FLAGS and type(truncated) in FLAGS)
        ):
            values = {name: np.array(value)[None] for name, value in given.items()}
            refusal: BaseException | None = self._or_lose_track(self._record, result, values, None)
            return refusal
        after[0] = obs
        said = self._annotate_ends(info, [0]) if terminated or truncated else []
        error: BaseException | None = None
        try:
            self._plain.append(
                lane=self._lane, obs=before[0], reward=reward, terminated=terminated, truncated=truncated,
                next_obs=after[0], **given,
            )  # fmt: skip
        except BaseException as refused:
            self._break_off(self._lanes)
            self._forget_ends(said)
            error = refused
        self._done[0] = terminated or truncated
        self._obs, self._spare = self._spare, self._obs
        return error

    @staticmethod
    def _with_result(error: BaseException, result: Result) -> BaseException:
        error.result = result  # type: ignore[attr-defined]
        error.add_note("The environment has stepped; its results are this error's attribute `result`.")
        return error

    def step_async(self, action: Any, *, timeout: float | None = None, **fields: Any) -> None:
        """Begin ``step``. An environment with its own ``step_async`` (Gymnasium's ``AsyncVectorEnv``, ``AtariFrames``)
        steps in the background until ``step_wait``; any other steps in ``step_wait``.

        Raises:
            ValueError, KeyError: as for ``step``, or if the previous step has not been waited for.
        """
        if not self._obs:
            raise ValueError("Recorder.step: called before reset(); reset the environment first")
        if self._begun is not None:
            raise ValueError("Recorder.step: the previous step has not been waited for; call step_wait() first")
        if self._stepping or np.count_nonzero(self._lost):  # a seventh of the time of any()
            raise ValueError(
                "Recorder.step: the environment raised an error, so its observation is unknown; call reset() first"
            )
        if self.mode == "Disabled" and np.count_nonzero(self._done):
            how = "reset(options={'reset_mask': mask})" if self._vector else "reset()"
            lanes = self._lanes[self._done].tolist()
            raise ValueError(f"Recorder.step: the episode of lane {lanes} has ended; call {how} first")
        if timeout is not None:
            check_timeout("Recorder.step", timeout)
        # Copied now: some environments write into it, and the caller may reuse it.
        given = step_values(self.store.spec, action, fields, self._in_infos)
        values = {}
        for name, value in given.items():
            if name in self._ragged:
                copied = copied_rows(f"Recorder.step: {name}", value if self._vector else [value])
            else:
                copied = np.array(as_array(name, value))
                copied = copied if self._vector else copied[None]
            values[name] = value = copied
            if value.shape[:1] != self._lanes.shape:
                raise ValueError(
                    f"Recorder.step: {name} has shape {value.shape}, expected a value for each of the "
                    f"{len(self._lanes)} lanes"
                )
        if self._steps_async:
            self._or_lose_track(self.env.step_async, action)
        elif isinstance(action, np.ndarray):
            action = action.copy()
        elif isinstance(action, (dict, tuple)):
            action = map_leaves(lambda one: one.copy() if isinstance(one, np.ndarray) else one, action)
        self._ready = False
        self._begun = action, values, timeout

    def step_wait(self) -> Any:
        """Wait for the step, record it, and return the result of ``step``.

        Raises:
            ValueError: no step was begun; otherwise as for ``step``.
        """
        if self._begun is None:
            raise ValueError("Recorder.step_wait: no step was begun; call step_async() first")
        self._lost[:] = True  # until all is recorded: KeyboardInterrupt may be raised between any two lines
        (action, values, timeout), self._begun = self._begun, None
        step = (self.env.step_wait,) if self._steps_async else (self.env.step, action)
        result = self._or_lose_track(*step)
        try:
            error = self._or_lose_track(self._record, result, values, timeout)
            self._lost[:] = False
            self._ready = self._plain is not None and not self._done[0]
        except BaseException as unfit:
            error = unfit
        if error is not None:
            raise self._with_result(error, result)
        return result

    def close(self, **settings: Any) -> Any:
        """Call ``env.close``; unfinished episodes stay open in the store."""
        return self.env.close(**settings)

    def _or_lose_track(self, call: Callable[..., Any], *args: Any) -> Any:
        """Return the result of a call; if it raises, mark the newest observations as unknown."""
        try:
            return call(*args)
        except BaseException:
            self._lost[:] = True
            self._break_off(self._lanes)
            raise

    def _break_off(self, lanes: Ints) -> None:
        """Break off the episodes of lanes after an error."""
        for lane in lanes.tolist():
            with contextlib.suppress(Exception):  # of a closed store, for example: the original error is more useful
                self.break_off(lane)

    def break_off(self, lane: int) -> None:
        """End a lane's episode as truncated, and annotate it with ``broken_off``: its program, not the environment,
        ended it. Call ``reset`` next."""
        try:
            self._annotate_lane(lane, {BROKEN_OFF: True})
        finally:
            if not self.store.break_episode(lane):
                self._annotate_lane(lane, {BROKEN_OFF: None})  # it was the next episode's

    def _record(self, result: Any, values: Frames, timeout: float | None) -> BaseException | None:
        """Store a step's rows; return the error of refused rows.

        Args:
            result: of the environment's step. ``values``: action and further fields, [lanes, *shape].

        Raises: ValueError: observations that do not fit the spec.
        """
        obs, reward, terminated, truncated, info = self._kind.outcome(result)
        te, tr = _of_lanes(np.asarray(terminated, np.bool_)), _of_lanes(np.asarray(truncated, np.bool_))
        ended, resetting = te | tr, self._done
        any_ended, ignored = np.count_nonzero(ended), np.count_nonzero(resetting)
        rows, begun = np.flatnonzero(~resetting) if ignored else self._rows, resetting
        self._keep(self._observations.frames(obs))
        error: BaseException | None = None
        final: Frames | None = None
        if self.mode == "SameStep":
            begun = ended
            try:
                if any_ended:
                    final, absent = final_frames(info, ended, self._observations, self._obs)
                    # Of a terminated episode nothing is needed: its discount is 0.
                    if (absent & (tr | self._kind.assumed)).any():
                        error = self._without_final(absent, absent & tr)
                        dropped = absent & (ended if self._kind.assumed else tr)
                        self._break_off(self._lanes[rows[dropped[rows]]])
                        rows = rows[~dropped[rows]]
            except ValueError as unfit:
                error = unfit
                self._break_off(self._lanes[rows[ended[rows]]])
                rows = rows[~ended[rows]]
        self.store._log.boundaries.counted["dropped_resets"] += int(ignored)
        said = self._annotate_ends(info, rows[ended[rows]].tolist()) if any_ended else []
        values = values | {"reward": _of_lanes(as_array("reward", reward)), "terminated": te, "truncated": tr}
        spec, wait = self.store.spec, {} if timeout is None else {"timeout": timeout}
        for name in self._in_infos:
            if name not in values:
                values[name] = info_rows(info, name, spec.fields[name], self._vector, ~resetting, ended)

        def store(rows: Any) -> None:
            def of(frames: Frames) -> Frames:
                return frames if rows is None else {name: array[rows] for name, array in frames.items()}

            given: dict[str, Any] = of(values)
            if not spec.array_action:
                action = spec.join_action(given)
                given = {name: value for name, value in given.items() if name not in spec.action_names}
                given["action"] = action
            self.store.extend(
                obs=spec.join_obs(of(self._obs)),
                next_obs=spec.join_obs(of(self._spare)),
                final_obs=None if final is None else spec.join_obs(of(final)),
                lanes=self._lanes if rows is None else self._lanes[rows],
                **given,
                **wait,
            )

        error = self._store(store, rows) or error
        if error is not None:
            self._forget_ends(said)
        # A NextStep lane is in a new episode after the row of its reset, a SameStep lane at once.
        self._done = ended if self.mode != "SameStep" else np.zeros_like(ended)
        self._obs, self._spare = self._spare, self._obs
        if self._observations.stacked:
            try:
                self._check_stacks(obs, begun)
            except ValueError as unlike:
                error = error or unlike
        return error

    def _without_final(self, absent: Bools, cut: Bools) -> ValueError:
        """Return the error about lanes without a final observation (``absent``), of which ``cut`` were truncated."""
        said = "Recorder: a SameStep environment ended an episode without info['final_obs']"
        if self._kind.assumed:
            return ValueError(said + _ASSUMED)
        return ValueError(
            f"{said}, and truncated it (lane {self._lanes[cut].tolist()}): learners bootstrap from what the last step "
            "led to, and what the step returned is the next episode's. Let the vector observe before it resets, and "
            "give info['final_obs'] [lanes, ...] in steps that truncate (of terminated episodes none is needed). Until "
            "then such a last step is not stored, and its episode counts as truncated before it"
        )

    def _store(self, store: Callable[[Any], None], rows: Ints) -> BaseException | None:
        """Store ``rows`` by ``store``, lane by lane if some are refused; return the error of the refused ones.

        Args:
            store: takes rows, ``None`` for all.
        """
        try:
            store(None if len(rows) == len(self._lanes) else rows)
            return None
        except (ValueError, TypeError) as error:
            refusal: BaseException = error
        except BaseException as error:
            self._break_off(self._lanes[rows])
            return error
        refused: list[int] = []
        for row in rows.tolist() if len(rows) > 1 else []:
            try:
                store([row])
            except (ValueError, TypeError) as error:
                refused.append(row)
                refusal = error if len(refused) == 1 else refusal
            except BaseException as error:
                self._break_off(self._lanes[rows[rows >= row]])
                return error
        if len(rows) == 1 or len(refused) == len(rows):
            self._break_off(self._lanes[rows])
            return refusal
        self._break_off(self._lanes[refused])
        named = type(refusal)(f"Recorder.step: lane {self._lanes[refused].tolist()}: {refusal}; other lanes are stored")
        named.__cause__ = refusal
        return named if refused else None

    def _keep(self, frames: Frames) -> None:
        """Copy the newest frames: some environments reuse the memory of their observations."""
        for name, array in frames.items():
            spare = self._spare.get(name)
            if spare is not None and (spare.shape, spare.dtype) == (array.shape, array.dtype):
                spare[...] = array
            else:
                self._spare[name] = np.array(array, order="C")

    def _check_stacks(self, obs: Any, begun: Bools) -> None:
        """Check that the environment's stacks equal the store's rebuilt ones.

        Checks where episodes have ``begun``, and the first steps after ``reset``.  Raises: ValueError.
        """
        if begun.any():
            self._observations.check_begun(obs, np.flatnonzero(begun))
        left, before = self._watched
        if left and before:
            self._observations.check_shifted(before, obs, np.flatnonzero(~begun))
            self._watched = left - 1, self._stacks(obs)

    def _stacks(self, obs: Any) -> Frames:
        return {name: array.copy() for name, array in self._observations.stacks(obs).items()}


def _of_lanes(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return values with an axis of lanes, which a single environment's values lack."""
    return values if values.ndim else values[None]
