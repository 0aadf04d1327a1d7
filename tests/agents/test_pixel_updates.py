"""Whole updates of Rainbow on images, several in a row, against the papers' equations in float64: augmentation (DrQ)
by padding and cutting, convolutions as sums of products; all random numbers drawn again from the seed; Adam by hand.
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

SIDE, STACK = 7, 2


class PixelOracle(Oracle):
    """Rainbow on images [STACK, SIDE, SIDE] with the network "tiny": a convolution of 3x3, stride 1."""

    def image(self, obs):
        return obs.double() / 255

    def features(self, weights, obs):
        return self.maps(weights, obs).flatten(1)

    def maps(self, weights, obs):
        """[B, rows, columns, channels]: the sum over channels and offsets of pixel times weight."""
        kernel, bias = weights["torso.0.weight"], weights["torso.0.bias"]
        side = obs.shape[-1] - 2
        found = bias.expand(len(obs), side, side, len(bias))
        for down in range(3):
            for right in range(3):
                part = obs[:, :, down : down + side, right : right + side]
                found = found + torch.einsum("bchw,oc->bhwo", part, kernel[:, :, down, right])
        return torch.relu(found)

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
        with torch.no_grad():
            nexts = [self.target_of(online, batch) for _ in range(settings.target_augmentations)]
        losses, errors = [], []
        for b in range(BATCH):
            targets = torch.stack([self.target_one(batch, b, *one) for one in nexts]).mean(dim=0)
            found = [self.compared(one[b, batch["action"][b]], targets) for one in predicted]
            losses.append(sum(loss for loss, _ in found) / len(found))
            errors.append(sum(error for _, error in found) / len(found))
        return (batch["weights"] * torch.stack(losses)).sum() / BATCH, torch.stack(errors).detach().numpy()

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
        self.online = self.adam.step(self.online, clipped(grads, settings.max_grad_norm), rate(settings, step))
        tau = settings.target_tau
        if tau > 0:
            self.target = {name: (1 - tau) * self.target[name] + tau * value for name, value in self.online.items()}
        return errors


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
