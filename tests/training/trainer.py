"""A run without a folder, as the tests of the loop want it."""

from sharpwave.configuration import leaves
from sharpwave.training import setup
from sharpwave.training.callbacks import Callback, Experience, Training
from sharpwave.training.evaluation import HeldOutEvaluations
from sharpwave.training.experience import ActorExperience, LocalExperience
from sharpwave.training.loop import train
from sharpwave.training.progress import TrainingState


class Kept(Callback):
    """Keeps what it is told."""

    def __init__(self):
        self.episodes, self.reports, self.evaluations, self.checkpoints = [], [], [], []
        self.begins = self.steps = self.updates = 0
        self.end = None

    def on_begin(self, training):
        self.begins += 1

    def on_step(self, training):
        self.steps += 1

    def on_update(self, training, learned):
        self.updates += 1

    def on_episode(self, metrics):
        self.episodes.append(metrics)

    def on_report(self, metrics):
        self.reports.append(metrics)

    def on_evaluation(self, metrics):
        self.evaluations.append(metrics)

    def on_checkpoint(self, training, metrics):
        self.checkpoints.append(metrics)

    def on_end(self, metrics):
        self.end = metrics


def options(recipe, *names):
    """Settings as the command line has them, by the names of their options."""
    return [f"{leaf.flag}={leaf.value}" for leaf in leaves(recipe) if leaf.name in names]


class Trained:
    """A recipe's environment, agent, store and view, and what came of training them."""

    def __init__(self, recipe, *callbacks, ahead=None):
        self.env = recipe.env.make(1 if recipe.actors.count else None)
        self.agent = setup.agent(recipe, self.env)
        self.store, self.view = setup.memory(recipe, self.env, self.agent)
        self.kept, self.state = Kept(), TrainingState.fresh(recipe, self.agent)
        self.before = {name: tensor.clone() for name, tensor in self.weights.items()}
        progress = self.state.progress
        experience: Experience
        if recipe.actors.count:
            experience = ActorExperience(recipe, self.agent, self.store, self.view, progress)
        else:
            experience = LocalExperience(self.env, self.agent, self.store, recipe.training.seed, progress)
        told = [HeldOutEvaluations(), *callbacks, self.kept]
        self.training = Training(recipe, self.agent, self.store, self.view, experience, self.state, told)
        self.last = train(self.training, ahead)

    @property
    def weights(self):
        return self.agent.state()["weights"]

    def close(self):
        self.env.close()
        self.store.close()
