"""Networks of random network distillation: observations are novel where a predictor has not learned their random
features yet.

Source: Burda et al. (2019), Exploration by random network distillation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sharpwave.agents.inputs import RunningInputs, standardize
from sharpwave.agents.networks import orthogonal


class Whitened(RunningInputs):
    """Preprocessing of observations for random features: numbers further than 5 deviations from their mean are as far.

    Source: Burda et al. (2019), Exploration by random network distillation, section 2.4.
    """

    MOST_DEVIATIONS = 5.0


class RandomDistillation(nn.Module):
    """Random features of observations, and a predictor that learns them: it errs where little was seen.

    Args:
        inputs: makes fresh inputs for vectors of a class.
        torso: makes a fresh torso, outputs of the inputs -> features.
        size: number of random features.
    Attributes:
        count, mean, squares: number, mean and summed squared differences of the errors that rewards were made of.
    Source: Burda et al. (2019), Exploration by random network distillation, section 2.2.
    """

    count: Tensor
    mean: Tensor
    squares: Tensor

    def __init__(self, inputs: Callable[[type[Whitened]], nn.Module], torso: Callable[[], Any], size: int) -> None:
        super().__init__()
        self.inputs = inputs(Whitened)

        def features(*further: nn.Module) -> nn.Module:
            made = torso()
            return nn.Sequential(made, nn.Linear(made.features, size), *further)

        self.predictor = features(nn.ReLU(), nn.Linear(size, size))  # deeper than what it predicts
        self.random = features().requires_grad_(False)
        for network in (self.predictor, self.random):
            network.apply(partial(orthogonal, gain=math.sqrt(2)))
        for name in ("count", "mean", "squares"):
            self.register_buffer(name, torch.zeros((), dtype=torch.float64))

    def observe(self, obs: Any) -> None:
        """Count observations [N, ...] among those whose mean and deviation whiten them."""
        standardize(self.inputs, obs, Whitened)

    def errors(self, obs: Any) -> Tensor:
        """Return the predictor's mean squared error for each observation, float [N]."""
        inputs = self.inputs(obs)
        error: Tensor = (self.predictor(inputs) - self.random(inputs)).square().mean(dim=1)
        return error

    @torch.no_grad()
    def rewards(self, obs: Any) -> Tensor:
        """Return the errors for observations [N, ...], divided by the deviation of all errors so far."""
        errors = self.errors(obs)
        variance, mean = torch.var_mean(errors.double(), correction=0)
        share, off = len(errors) / (self.count + len(errors)), mean - self.mean
        self.squares += len(errors) * (variance + off.square() * (1 - share))
        self.mean += off * share
        self.count += len(errors)
        return errors / ((self.squares / self.count).sqrt() + 1e-8).to(errors.dtype)
