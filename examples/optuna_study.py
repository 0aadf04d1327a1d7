"""Search settings by Optuna: trials are pruned by their held-out scores, and an interrupted study goes on.

    pip install '.[optuna]'
    python examples/optuna_study.py --trials 20

Each trial is a run in a folder of its own, whose evaluations are reported to the study. Optuna's median pruner stops
those that are worse than half of the trials before them. The study is a file of SQLite; the same command adds trials.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import optuna

import sharpwave as sw
from sharpwave.training.callbacks import Callback, Training


class Pruning(Callback):
    """Report each evaluation to the study; end the run once the pruner gives the trial up."""

    def __init__(self, trial: optuna.Trial) -> None:
        self.trial, self.given_up = trial, False

    def on_begin(self, training: Training) -> None:
        self.training = training

    def on_evaluation(self, metrics: dict[str, Any]) -> None:
        self.trial.report(metrics["mean"], metrics["steps"])
        if self.trial.should_prune():
            self.given_up = True
            self.training.stop("pruned by Optuna")


def objective(trial: optuna.Trial, folder: Path, steps: int) -> float:
    settings = {
        "learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True),
        "n_step": trial.suggest_int("n_step", 1, 5),
        "target_tau": trial.suggest_float("target_tau", 1e-3, 1e-1, log=True),
        "epsilon_steps": trial.suggest_int("epsilon_steps", 1_000, 10_000, log=True),
    }
    pruning = Pruning(trial)
    run = sw.train(
        "CartPole-v1", recipe="cartpole", steps=steps, evaluate_every=steps // 10, evaluate_from=0.0, stop_reward=None,
        out=folder / f"trial-{trial.number}", callbacks=[pruning], progress=False, **settings,
    )  # fmt: skip
    if run.summary["reason"].startswith("interrupted"):  # Ctrl-C: the study ends, too
        raise KeyboardInterrupt
    if pruning.given_up:
        raise optuna.TrialPruned
    best = run.summary["held_out"]
    return 0.0 if best is None else float(best["mean"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20, help="trials to add")
    parser.add_argument("--steps", type=int, default=20_000, help="environment steps of a trial")
    parser.add_argument("--out", type=Path, default=Path("runs/optuna"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    study = optuna.create_study(
        study_name="cartpole", storage=f"sqlite:///{arguments.out}/study.db", load_if_exists=True, direction="maximize",
        pruner=optuna.pruners.MedianPruner(n_startup_trials=3, n_warmup_steps=arguments.steps // 5),
    )  # fmt: skip
    study.optimize(lambda trial: objective(trial, arguments.out, arguments.steps), n_trials=arguments.trials)
    for trial in study.trials:
        print(f"trial {trial.number}: {trial.state.name.lower()} {trial.value if trial.value is not None else '-'}")
    complete = [trial for trial in study.trials if trial.state is optuna.trial.TrialState.COMPLETE]
    if complete:
        print(f"best: trial {study.best_trial.number}, {study.best_value:.1f}, {study.best_params}")


if __name__ == "__main__":
    main()
