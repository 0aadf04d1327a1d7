"""A run as its user sees it: its folder, its figures so far, its changed settings and its learning curve."""

from __future__ import annotations

import io
import math
import tempfile
import warnings
import weakref
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import sharpwave as sw
from sharpwave.configuration import leaves
from sharpwave.escaping import printable
from sharpwave.showing import byte_text, duration_text, line_chart, number_text, step_bytes_text, table, titled
from sharpwave.training.atomic_files import write_bytes
from sharpwave.training.beside_data import comparison_text
from sharpwave.training.callbacks import end_by_signal
from sharpwave.training.folder import (
    CURVE,
    METRICS,
    Config,
    as_number,
    read_config,
    read_metrics,
    read_summary,
    saved_memory,
)
from sharpwave.training.metrics_table import MetricsTable
from sharpwave.training.recipes import default_recipe, load_recipe
from sharpwave.training.recipes.recipe import resumable


class _Outcome(NamedTuple):
    folder: Path
    summary: dict[str, Any]


class TrainingRun(_Outcome):
    """Run that has ended, or that was opened from its folder; a notebook shows its score, curve and settings.

    ``folder, summary = run`` unpacks it, and it stands for its folder where a path does, as in ``data=run``. As
    ``sharpwave.train`` returns it, it remembers the environment that it was given, for ``evaluate`` and ``resume``.

    Attributes:
        folder: the run's folder.
        summary: figures as in summary.json; of a run that goes on or was killed, those of its last report.
    """

    _env: Any = None
    _trusted = False

    def __fspath__(self) -> str:
        return str(self.folder)

    def of(self, env: Any) -> TrainingRun:
        """Return the run as one of this process, which made its environment: ``env``; None: by its name."""
        run = TrainingRun(*self)
        run._env, run._trusted = env, True
        return run

    def __getstate__(self) -> None:
        """Leave the environment in this process."""

    @classmethod
    def open(cls, folder: Path | str) -> TrainingRun:
        """Read a run from its folder, which is not changed; the run may be going on.

        Raises:
            ValueError: the folder holds no run, or its config.json is damaged.
            NewerVersionError: a later release wrote it.
        """
        folder = Path(folder).expanduser()
        config = _config(folder)
        summary = read_summary(folder)
        if summary is None:
            reports = [event for event in read_metrics(folder / METRICS) if event.get("event") == "report"]
            about = {"recipe": config.name, "env": config.recipe.env.name, "seed": config.recipe.training.seed}
            summary = about | (reports[-1] if reports else {})
        return cls(folder, summary)

    @property
    def metrics(self) -> MetricsTable:
        """Events of metrics.jsonl: ``run.metrics.of("episode")["reward"]``, ``run.metrics.to_pandas()``."""
        return MetricsTable(read_metrics(self.folder / METRICS))

    @property
    def policy(self) -> sw.Policy:
        """Its best policy, by held-out evaluation, if there is one; else that of its newest checkpoint.

        Raises:
            ValueError: there is no checkpoint yet, or its policy is damaged.
        """
        from sharpwave.training.policies import Policy

        return Policy.load(self.folder, trust=self._trusted)

    @property
    def store(self) -> sw.Store:
        """Replay memory of the newest checkpoint, read anew at each access; the run's own files are not changed.

        Of a run with its memory on disk the files are linked into a temporary folder beside the run's.

        Warns:
            UserWarning: it is damaged, and lacks steps. ``resume`` then goes on from an earlier checkpoint.
        Raises:
            ValueError: no checkpoint has one: ``save_replay=False``, or other processes keep it.
        """
        saved = saved_memory(self.folder)
        if saved is None:
            raise ValueError(
                f"run {str(self.folder)!r} has no checkpoint with its replay memory; runs with save_replay=False, or "
                "with connect= or ray=, have none"
            )
        if not _config(self.folder).recipe.replay.disk_limit:
            return _warned(sw.Store.open(saved), saved)
        beside = tempfile.TemporaryDirectory(prefix=f".{self.folder.name}-", dir=self.folder.absolute().parent)
        store = sw.Store.open(saved, disk=Path(beside.name) / "store")
        weakref.finalize(store, beside.cleanup)
        return _warned(store, saved)

    def evaluate(self, env: Any = None, episodes: int = 100, *, trust: bool = False, **options: Any) -> Any:
        """Play held-out episodes with ``policy``, as ``sharpwave.evaluate`` does.

        Args:
            env: the environment; None: that of the run, as this process gave it, or by its name.
            trust: allow importing the module that the environment's name refers to.
        """
        from sharpwave.training.policies import Policy

        policy = Policy.load(self.folder, trust=trust or self._trusted)
        return sw.evaluate(policy, self._env if env is None else env, episodes, **options)

    def resume(
        self, *, env: Any = None, trust: bool = False, callbacks: Any = (), actor_callbacks: Any = (),
        progress: bool = True, **changes: Any,
    ) -> TrainingRun:  # fmt: skip
        """Continue the run in its folder from its newest checkpoint; without actors it repeats exactly.

        Args:
            env: the environment again, if the run was given an object or a function; None: as this process gave it.
            trust: allow importing the module that the environment's name refers to.
            callbacks, actor_callbacks, progress: as for ``sharpwave.train``.
            changes: new values of settings: ``steps=200_000``; as for ``sharpwave train --resume``.
        Raises:
            ValueError: there is no checkpoint, the run is in use, or a setting cannot be changed.
            OSError, ProcessDiedError, CallbackError, NotSavedError: as ``sharpwave.train``.
        """
        from rich.console import Console

        unknown = sorted(set(changes) - set(resumable()))
        if unknown:
            raise ValueError(
                f"{unknown[0]} cannot be changed in a run that is resumed, expected some of {', '.join(resumable())}"
            )
        resumed: TrainingRun = import_module("sharpwave.training.run").resume(  # it makes runs, so it imports this
            self.folder, changes, Console(quiet=not progress), env=self._env if env is None else env,
            trust=trust or self._trusted, callbacks=callbacks, actor_callbacks=actor_callbacks,
        )  # fmt: skip
        end_by_signal(resumed.summary["reason"])
        return resumed.of(self._env if env is None else env)

    @property
    def changes(self) -> dict[str, Any]:
        """Settings that differ from those of the run's recipe, by path: {"training.steps": 400}."""
        config = _config(self.folder)
        recipe = config.recipe
        try:
            base = load_recipe(config.name)
            if base.agent.kind != recipe.agent.kind or base.env.kind != recipe.env.kind:
                base = default_recipe(recipe.agent.kind)
        except ValueError:  # named after a file of settings
            base = default_recipe(recipe.agent.kind)
        usual = {leaf.key: leaf.value for leaf in leaves(base)}
        missing = object()
        return {leaf.key: leaf.value for leaf in leaves(recipe) if usual.get(leaf.key, missing) != leaf.value}

    def __repr__(self) -> str:
        said = [f"{name} {value}" for name, value in self._figures()]
        return f"<TrainingRun {str(self.folder)!r}: {', '.join(said)}>"

    def _repr_html_(self) -> str:
        summary = self.summary
        rows = [*self._figures(), ("folder", printable(str(self.folder)))]
        if "replay_bytes" in summary:
            rows.insert(-1, replay_row(summary))
        try:
            changes = self.changes
        except ValueError:  # the folder was moved or deleted
            return titled(self._title(), table(("", ""), rows))
        lines = _curve(self.folder)
        chart = line_chart(lines, "updates" if "data" in summary else "environment steps")
        changed = table(("setting", "value"), changes.items()) if changes else ""
        return titled(self._title(), chart, table(("", ""), rows), changed)

    def _title(self) -> str:
        summary = self.summary
        return printable(f"{summary.get('recipe')}: {summary.get('env')}, seed {summary.get('seed')}")

    def _figures(self) -> list[tuple[str, str]]:
        summary = self.summary
        ended = "not ended" if "steps" in summary else "begun"
        reason = summary.get("reason")
        state = ("ended", printable(reason)) if reason else ("state", ended)
        return [("recipe", self._title()), *summary_rows(summary), state]


def summary_rows(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the figures of a summary as text, each with its name: scores, counts and time."""
    rows = []
    for name, key in (("fresh held-out mean", "final"), ("best held-out mean", "held_out")):
        if (one := summary.get(key)) is not None:  # the first: of episodes that did not choose the weights
            lowest = f"(lowest {one['min']:g}) of {len(one['scores'])}"
            rows.append((name, f"{one['mean']:,.2f} {lowest}, weights of step {one['steps']:,}"))
            break
    if (beside := summary.get("behavior")) is not None:
        rows.append(("last policy", printable(comparison_text(beside))))
    if summary.get("mean_reward") is not None:
        rows.append(("training mean of 100", number_text(summary["mean_reward"])))
    counts = ("updates",) if "data" in summary else ("steps", "updates", "episodes")
    rows += [(name, f"{summary[name]:,}") for name in counts if name in summary]
    if (origin := summary.get("learned_from")) is not None:
        rows.append(("learned from", origin_text(origin)))
    if "minutes" in summary:
        rows.append(("time", duration_text(summary["minutes"] * 60)))
    return rows


def origin_text(origin: dict[str, Any]) -> str:
    version = "no version" if origin["version"] is None else f"version {origin['version']}"
    said = f"{origin['path']}, {version}: {origin['steps']:,} steps"
    if "segments" in origin:
        said += f" in {origin['segments']:,} segments"
    if "learned" in origin:
        said += f", of which {origin['learned']:,} are learned from"
    return printable(said + (f", sha256 {origin['sha256'][:12]}" if "sha256" in origin else ""))


def replay_row(summary: dict[str, Any]) -> tuple[str, str]:
    """Return the size of a run's replay memory as text, with its name."""
    replay = f"{summary['replay_steps']:,} steps in {byte_text(summary['replay_bytes'])}"
    return "replay memory", f"{replay}; {step_bytes_text(summary)}"


def _warned(store: sw.Store, saved: Path) -> sw.Store:
    """Warn of damages that were found when a checkpoint's replay memory was opened."""
    if store.recovery is not None and store.recovery.damages:
        warnings.warn(
            f"the replay memory in {str(saved)!r} is damaged, and lacks steps: {store.recovery.damages[0]}; those of "
            "other checkpoints are opened by sharpwave.Store.open",
            stacklevel=3,
        )
    return store


def _config(folder: Path) -> Config:
    return read_config(folder, trust=True)  # its environment is not made, so that nothing is imported


def _curve(folder: Path) -> dict[str, list[tuple[float, float]]]:
    """Return the lines of a run's curve: points of steps and rewards, by name."""
    named = {"episode": ("training mean of 100", "mean_reward"), "evaluation": ("held-out mean", "mean")}
    lines: dict[str, list[tuple[float, float]]] = {label: [] for label, _ in named.values()}
    for event in read_metrics(folder / METRICS):
        label, key = named.get(str(event.get("event")), ("", ""))
        with suppress(KeyError, ValueError, OverflowError):  # None, or no number
            point = as_number(event["steps"], "steps"), as_number(event[key], key)
            if all(map(math.isfinite, point)):
                lines[label].append(point)
    return lines


def draw_curve(folder: Path, config: Config) -> None:
    """Draw rewards against steps and against minutes, from a run's metrics.jsonl to curve.png.

    Dots are training episodes, the line is the mean of the last 100; diamonds are held-out evaluations.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    events = list(read_metrics(folder / METRICS))
    episodes = [event for event in events if event["event"] == "episode"]
    evaluations = [event for event in events if event["event"] == "evaluation"]
    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    recipe, goal = config.recipe, config.recipe.evaluation.stop_reward
    figure.suptitle(printable(f"{config.name}, seed {recipe.training.seed}"), parse_math=False)
    for axes, key in zip(figure.subplots(1, 2, sharey=True), ("steps", "minutes"), strict=True):
        across = [event[key] for event in episodes]
        if episodes:
            rewards = [event["reward"] for event in episodes]
            axes.plot(across, rewards, ".", markersize=3, alpha=0.3, label="episode of training")
            axes.plot(across, [event["mean_reward"] for event in episodes], linewidth=2, label="mean of 100")
        axes.plot(
            [event[key] for event in evaluations],
            [event["mean"] for event in evaluations],
            "D" if episodes else "D-",
            markersize=5,
            label="held-out mean",
        )
        if goal is not None:
            axes.axhline(goal, linestyle="--", linewidth=1, color="gray", label=f"goal {goal:g}")
        axes.set_xlabel(key if key == "minutes" else "updates" if recipe.offline else "environment steps")
        if key == "steps":
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("reward of an episode")
    figure.axes[0].legend(loc="best")
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=120, format="png")
    write_bytes(folder / CURVE, drawn.getvalue())
