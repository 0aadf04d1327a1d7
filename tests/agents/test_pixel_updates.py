"""Whole updates of Rainbow on images, several in a row, against the papers' equations in float64: augmentation (DrQ)
by padding and cutting, convolutions as sums of products, self-prediction (SPR) step by step, resets; all random numbers
drawn again from the seed; Adam by hand.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from sharpwave.agents.protocol import Spaces
from sharpwave.agents.rainbow import Rainbow
from tests.agents.optimizers import clipped, rate
from tests.agents.test_rainbow_updates import SEED, Oracle
from tests.agents.test_updates import ACTIONS, BATCH, UNITS, weights_of

SIDE, STACK, STEPS, N_STEP = 5, 2, 3, 2


class PixelOracle(Oracle):
    """Rainbow on images [STACK, SIDE, SIDE] with the network "tiny": a convolution of 3x3, stride 1."""

    def image(self, obs):
        return obs.double() / 255

    def features(self, weights, obs):
        return self.maps(weights, obs).flatten(1)

    def maps(self, weights, obs):
        """[B, rows, columns, channels] of the torso."""
        return torch.relu(convolved(obs.permute(0, 2, 3, 1), weights["torso.0.weight"], weights["torso.0.bias"]))

    def augmented(self, images):
        """Kostrikov: pad by the border, cut out at random; Schwarzer: times 1 + .05 e, e normal, cut at two."""
        pixels, deviation = self.settings.random_shift, self.settings.random_intensity
        if pixels:
            down, right = self.rng.integers(-pixels, pixels + 1, (2, len(images), 1))[..., 0]
            wide = torch.nn.functional.pad(images, [pixels] * 4, mode="replicate")
            moved = [
                one[:, pixels - y : pixels - y + SIDE, pixels - x : pixels - x + SIDE]
                for one, y, x in zip(wide, down, right, strict=True)
            ]
            images = torch.stack(moved)
        if deviation:
            drawn = np.clip(self.rng.standard_normal(len(images), np.float32), -2, 2).astype(np.float64)
            images = images * torch.from_numpy(1 + deviation * drawn)[:, None, None, None]
        return images

    def extra(self, online, batch, images):
        """What is added to the items' losses, before and after targets are drawn."""
        yield 0.0
        yield 0.0

    def target_of(self, online, batch):
        """One copy of the targets' ingredients: predictions of next actions and the next policy."""
        target = {name: torch.from_numpy(value) for name, value in self.target.items()}
        images = self.augmented(self.image(batch["next_obs"]))
        following = self.predict(target, self.noise(), images)
        next_q = self.values(following)
        if self.settings.double:
            next_q = self.values(self.predict(online, self.noise(), images))
        return following, torch.eye(ACTIONS, dtype=torch.double)[next_q.argmax(dim=1)]

    def loss(self, online, batch):
        settings = self.settings
        predicted = []
        for _ in range(settings.augmentations):
            images = self.augmented(self.image(batch["obs"]))
            predicted.append(self.predict(online, self.noise(), images))
        extra = self.extra(online, batch, images)
        next(extra)
        with torch.no_grad():
            nexts = [self.target_of(online, batch) for _ in range(settings.target_augmentations)]
        losses, errors = [], []
        for b in range(BATCH):
            targets = torch.stack([self.target_one(batch, b, *one) for one in nexts]).mean(dim=0)
            found = [self.compared(one[b, batch["action"][b]], targets) for one in predicted]
            losses.append(sum(loss for loss, _ in found) / len(found))
            errors.append(sum(error for _, error in found) / len(found))
        total = torch.stack(losses) + next(extra)
        return (batch["weights"] * total).sum() / BATCH, torch.stack(errors).detach().numpy()

    def target_one(self, batch, b, following, policy):
        """Bellemare et al. (2017), eq. 7, of one item; for the mean of the return its bootstrap."""
        reward, discount = batch["reward"][b], batch["discount"][b]
        if self.settings.head == "expected":
            return reward + discount * (policy[b] * following[b]).sum()
        probabilities = (policy[b, :, None] * torch.softmax(following[b], dim=1)).sum(dim=0)
        return self.target_distribution(reward, discount, probabilities)

    def compared(self, predicted, target):
        if self.settings.head == "expected":
            return self.huber(target - predicted), target - predicted
        some = target > 0
        loss = (target[some] * (target[some].log() - torch.log_softmax(predicted, dim=0)[some])).sum()
        return loss, loss

    def learn(self, batch, step):
        settings = self.settings
        if settings.target_tau == 0 and step // settings.target_every > self.copied:
            self.copied, self.target = step // settings.target_every, dict(self.online)
        online = {name: torch.from_numpy(value).requires_grad_() for name, value in self.online.items()}
        loss, errors = self.loss(online, batch)
        found = torch.autograd.grad(loss, list(online.values()))
        grads = dict(zip(online, (grad.numpy() for grad in found), strict=True))
        parts = [
            {name: grad for name, grad in grads.items() if name.startswith("model.") is model}
            for model in (False, True)
        ]
        bounded = clipped(parts[0], settings.max_grad_norm) | clipped(parts[1], settings.max_grad_norm)
        self.online = self.adam.step(self.online, bounded, rate(settings, step))
        tau = settings.target_tau
        if tau > 0:
            self.target = {name: (1 - tau) * self.target[name] + tau * value for name, value in self.online.items()}
        return errors


def convolved(maps, kernel, bias):
    """[B, rows - 2, columns - 2, channels]: the sum over channels and offsets of number times weight."""
    rows, columns = maps.shape[1] - 2, maps.shape[2] - 2
    found = bias.expand(len(maps), rows, columns, len(bias))
    for down in range(3):
        for right in range(3):
            part = maps[:, down : down + rows, right : right + columns]
            found = found + torch.einsum("bhwc,oc->bhwo", part, kernel[:, :, down, right])
    return found


class SelfPredictingOracle(PixelOracle):
    """Rainbow with SPR: Schwarzer et al. (2021), with weights "model..." beside the network's, and resets."""

    def normal(self, maps):
        flat = maps.flatten(1)
        low, high = flat.min(dim=1).values, flat.max(dim=1).values
        return (maps - low[:, None, None, None]) / (high - low + 1e-5)[:, None, None, None]

    def maps(self, weights, obs):
        plain = {name.replace("torso.torso", "torso"): value for name, value in weights.items()}
        return self.normal(super().maps(plain, obs))

    def step(self, weights, maps, action):
        """One step of the model: convolution, ReLU, batch normalization, convolution, ReLU, between 0 and 1."""
        planes = torch.eye(ACTIONS, dtype=torch.double)[action][:, None, None].expand(*maps.shape[:3], ACTIONS)
        for layer, entry in ((0, torch.cat([maps, planes], dim=3)), (3, None)):
            entry = maps if entry is None else entry
            wide = torch.nn.functional.pad(entry, (0, 0, 1, 1, 1, 1))
            kernel, bias = (weights[f"model.transition.{layer}.{part}"] for part in ("weight", "bias"))
            maps = torch.relu(convolved(wide, kernel, bias))
            if layer == 0:
                mean = maps.mean(dim=(0, 1, 2))
                variance = ((maps - mean) ** 2).mean(dim=(0, 1, 2))
                scale, offset = (weights[f"model.transition.2.{part}"] for part in ("weight", "bias"))
                maps = (maps - mean) / torch.sqrt(variance + 1e-5) * scale + offset
        return self.normal(maps)

    def projection(self, weights, maps):
        return maps.flatten(1) @ weights["head.hidden.weight"].T + weights["head.hidden.bias"]

    def extra(self, online, batch, images):
        windows, maps, predicted = batch["windows"], self.maps(online, images), []
        for k in range(STEPS):
            maps = self.step(online, maps, windows["action"][:, k])
            projection = self.projection(online, maps)
            predicted.append(projection @ online["model.predictor.weight"].T + online["model.predictor.bias"])
        yield
        following = windows["obs"][:, 1 : STEPS + 1].flatten(0, 1)
        target = {name: torch.from_numpy(value) for name, value in self.target.items()}
        targets = self.projection(target, self.maps(target, self.augmented(self.image(following))))
        targets = targets.reshape(BATCH, STEPS, -1)
        apart = []
        for b in range(BATCH):
            one = torch.zeros((), dtype=torch.double)
            for k in range(int(windows["mask"][b].sum())):  # the episode's steps; the rest is padding
                ours, theirs = predicted[k][b], targets[b, k]
                one = one + 1 - (ours @ theirs) / (ours.norm() * theirs.norm())
            apart.append(one)
        yield self.settings.self_prediction_weight * torch.stack(apart)

    def learn(self, batch, step):
        rows = torch.arange(BATCH)
        transitions = {name: batch[name][:, 0] for name in ("obs", "action", "reward", "discount")}
        transitions |= {"next_obs": batch["obs"][rows, batch["bootstrap"][:, 0]], "weights": batch["weights"]}
        errors = super().learn({**transitions, "windows": batch}, step)
        return np.concatenate([errors[:, None], np.zeros((BATCH, STEPS - 1))], axis=1)

    def reset(self, fresh):
        """D'Oro et al. (2023): convolutions are mixed with fresh ones, all else is fresh, and so is Adam."""
        keeps = self.settings.reset_keeps
        for name, own in self.online.items():
            kept = keeps if name.startswith(("torso.", "model.transition.")) else 0.0
            self.online[name] = kept * own + (1 - kept) * fresh[name]
        self.target, self.adam = dict(self.online), type(self.adam)(self.adam.eps)


def window_batches(count, seed):
    """Windows of STEPS steps, some of which their episode's end cuts short."""
    rng = np.random.default_rng(seed)
    columns = np.arange(STEPS)
    for _ in range(count):
        left = rng.integers(1, STEPS + N_STEP + 3, BATCH)[:, None]  # steps until the episode's end
        used, mask = np.clip(left - columns, 0, N_STEP), columns < left
        yield {
            "obs": rng.integers(0, 256, (BATCH, STEPS + N_STEP, STACK, SIDE, SIDE), np.uint8),
            "action": rng.integers(0, ACTIONS, (BATCH, STEPS)) * mask,
            "reward": (rng.normal(size=(BATCH, STEPS)) * mask).astype(np.float32),
            "discount": (0.9**used * (left - columns > N_STEP)).astype(np.float32),
            "bootstrap": columns + used,
            "mask": mask,
            "weights": rng.uniform(0.1, 1.0, BATCH).astype(np.float32),
            "ids": np.arange(BATCH),
        }


def pixel_batches(count, seed):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield {
            "obs": rng.integers(0, 256, (BATCH, STACK, SIDE, SIDE), np.uint8),
            "next_obs": rng.integers(0, 256, (BATCH, STACK, SIDE, SIDE), np.uint8),
            "action": rng.integers(0, ACTIONS, BATCH),
            "reward": rng.normal(size=BATCH).astype(np.float32),
            "discount": (0.9 ** rng.integers(1, 4, BATCH) * (rng.random(BATCH) < 0.8)).astype(np.float32),
            "weights": rng.uniform(0.1, 1.0, BATCH).astype(np.float32),
        }


BASE = {
    "network": "tiny", "hidden_units": UNITS, "lr": 2e-3, "adam_eps": 1.5e-4, "atoms": 11, "target_every": 24,
    "lowest_return": -5.0, "highest_return": 4.0,
}  # fmt: skip
SPACES = Spaces(Box(0, 255, (STACK, SIDE, SIDE), np.uint8), Discrete(ACTIONS))


@pytest.mark.parametrize(
    "changes",
    [
        {"random_shift": 2},
        {"random_intensity": 0.05, "head": "expected", "noisy": False},
        {"random_shift": 2, "random_intensity": 0.05, "augmentations": 2, "target_augmentations": 3},
        {"random_shift": 1, "random_intensity": 0.1, "augmentations": 3, "head": "expected", "double": False},
        {"random_shift": 3, "target_augmentations": 2, "target_tau": 1.0, "dueling": False, "noisy": False},
    ],
    ids=lambda changes: "-".join(f"{name}={value}" for name, value in changes.items()),
)
def test_updates_from_augmented_images_are_those_of_the_equations(changes):
    torch.manual_seed(1)
    agent = Rainbow(SPACES, Rainbow.Settings(**BASE | changes), seed=SEED)
    oracle = PixelOracle(weights_of(agent, "online."), agent.settings)
    begun = dict(oracle.online)
    for update, batch in enumerate(pixel_batches(8, seed=3)):
        step, tensors = 8 * update, {name: torch.from_numpy(value) for name, value in batch.items()}
        exact = {name: one.double() if one.is_floating_point() else one for name, one in tensors.items()}
        expected = oracle.learn(exact, step)
        learned = agent.learn(SimpleNamespace(**tensors), step)
        assert learned.td_error is not None
        np.testing.assert_allclose(learned.td_error, expected, rtol=0, atol=5e-6)
    for network, weights in (("online.", oracle.online), ("target.", oracle.target)):
        found = weights_of(agent, network)
        assert found.keys() == weights.keys()
        for name, value in found.items():
            np.testing.assert_allclose(value, weights[name], rtol=0, atol=2e-6, err_msg=network + name)
    assert all(np.abs(oracle.online[name] - begun[name]).max() > 1e-3 for name in begun)


def all_weights(agent):
    return weights_of(agent, "online.") | {
        f"model.{name}": value for name, value in weights_of(agent, "prediction.").items()
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"max_grad_norm": 0.5},
        {"head": "expected", "noisy": False, "dueling": False, "self_prediction_weight": 0.7},
        {"random_shift": 2, "random_intensity": 0.05, "augmentations": 2, "target_augmentations": 2, "target_tau": 1.0},
        {"reset_every": 3, "reset_keeps": 0.8, "target_tau": 0.3, "noisy": False},
        {"reset_every": 3, "reset_keeps": 0.5, "reset_until": 30, "random_intensity": 0.1},
    ],
    ids=lambda changes: "-".join(f"{name}={value}" for name, value in changes.items()),
)
def test_updates_with_self_prediction_and_resets_are_those_of_the_equations(changes):
    torch.manual_seed(1)
    agent = Rainbow(SPACES, Rainbow.Settings(**BASE | {"self_prediction": STEPS} | changes), seed=SEED)
    oracle = SelfPredictingOracle(all_weights(agent), agent.settings)
    begun, every = dict(oracle.online), agent.settings.reset_every
    for update, batch in enumerate(window_batches(8, seed=3), 1):
        step, tensors = 8 * update, {name: torch.from_numpy(value) for name, value in batch.items()}
        exact = {name: one.double() if one.is_floating_point() else one for name, one in tensors.items()}
        expected = oracle.learn(exact, step)
        if every and update % every == 0 and step <= (agent.settings.reset_until or step):
            drawn = torch.get_rng_state()
            fresh = agent.network().state_dict()
            fresh |= {f"model.{name}": value for name, value in agent.model().state_dict().items()}
            torch.set_rng_state(drawn)
            oracle.reset({name: value.double().numpy() for name, value in fresh.items()})
        learned = agent.learn(SimpleNamespace(**tensors), step)
        assert learned.td_error is not None and 0 < learned.metrics["self_prediction"] < 2
        np.testing.assert_allclose(learned.td_error, expected, rtol=0, atol=1e-5)
    target = {name: value for name, value in oracle.target.items() if not name.startswith("model.")}
    for found, weights in ((all_weights(agent), oracle.online), (weights_of(agent, "target."), target)):
        assert found.keys() == weights.keys()
        for name, value in found.items():
            np.testing.assert_allclose(value, weights[name], rtol=0, atol=1e-5, err_msg=name)
    assert all(np.abs(oracle.online[name] - begun[name]).max() > 1e-3 for name in begun)
