"""R2D2: recurrent Q-network that learns from windows of an episode's steps with stored states and burn-in.

Source: Kapturowski et al. (2019), Recurrent experience replay in distributed reinforcement learning.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

import sharpwave as sw
from sharpwave.agents.actions import legal_in, legal_rows, with_legal
from sharpwave.agents.dqn import NStepErrors, QSettings, QState, TargetQAgent
from sharpwave.agents.learner import to_tensors
from sharpwave.agents.losses import RESCALING_EPS, signed_hyperbolic, signed_parabolic, window_ends
from sharpwave.agents.protocol import Acted, Obs, Rows, Valued, ViewSettings
from sharpwave.agents.replay import LEARNING, MEMORY, NETWORK, linear
from sharpwave.configuration import again, check, expect, setting
from sharpwave.extras import Tensor, nn, torch
from sharpwave.nesting import map_leaves
from sharpwave.spec import Field

if TYPE_CHECKING:
    from sharpwave.agents.recurrent import RecurrentQNetwork

CORE = "core"
"""Field of the recurrent state, with the previous action and reward, which a window's first step needs."""


@dataclass(frozen=True)
class SequencesSettings(ViewSettings):
    """Settings of a view of windows of an episode's steps, sampled uniformly or by priority.

    Defaults are those of Kapturowski et al. (2019), Recurrent experience replay in distributed reinforcement learning,
    table 2. Returns are of one step: a recurrent agent sums more within the window.
    """

    batch_size: int = setting(64, "windows per update", LEARNING, at_least=1)
    length: int = setting(80, "steps of a window that are trained", LEARNING, at_least=1)
    burn_in: int = setting(40, "steps before them, from which the recurrent state is computed", LEARNING, at_least=0)
    stride: int = setting(40, "steps between the beginnings of windows, at most length", LEARNING, at_least=1)
    gamma: float = setting(0.997, "discount factor per step", LEARNING, at_least=0, at_most=1)
    prioritized: bool = setting(True, "sample by temporal-difference error instead of uniformly", MEMORY)
    priority_alpha: float = setting(0.9, "prioritized: exponent of the priorities", MEMORY, at_least=0, at_most=1)
    priority_beta: float = setting(
        0.6, "prioritized: exponent of the importance weights", MEMORY, at_least=0, at_most=1
    )
    beta_end: float | None = setting(
        None, "prioritized: final exponent of the weights; empty: constant", MEMORY, at_least=0, at_most=1
    )
    beta_steps: int = setting(0, "prioritized: steps from priority-beta to beta-end", MEMORY, at_least=0)
    eta: float = setting(
        0.9, "share of a window's largest error in its priority; the rest is the mean", MEMORY, at_least=0, at_most=1
    )

    def __post_init__(self) -> None:
        check(self)
        expect(self, "stride", self.stride <= self.length, f"at most length={self.length}")
        falls = self.prioritized and self.beta_end is not None
        expect(self, "beta_steps", not falls or self.beta_steps > 0, "at least 1 with --beta-end")

    def unused(self) -> Iterator[tuple[str, str]]:
        if not self.prioritized:
            for name in ("priority_alpha", "priority_beta", "beta_end", "beta_steps", "eta"):
                yield name, "--prioritized"
        elif self.beta_end is None:
            yield "beta_steps", "--beta-end"

    @property
    def horizon(self) -> int:
        return self.length

    @property
    def state_every(self) -> int:
        """Steps between recurrent states that are stored: windows and their burn-in begin at multiples of it."""
        return math.gcd(self.stride, self.burn_in)

    def open(self, store: sw.Store, name: str | None, seed: int) -> Any:
        prioritized = sw.Prioritized(alpha=self.priority_alpha, beta=self.priority_beta)
        return store.sequences(
            self.length,
            burn_in=self.burn_in,
            stride=self.stride,
            gamma=self.gamma,
            eta=self.eta,
            name=name,
            sampler=prioritized if self.prioritized else sw.Uniform(),
            seed=seed,
        )

    def beta(self, step: int) -> float | None:
        if self.beta_end is None or not self.prioritized:
            return None
        return linear(step, self.priority_beta, self.beta_end, self.beta_steps)


@dataclass(frozen=True)
class R2D2Settings(QSettings):
    """Settings of R2D2; the defaults are those of Kapturowski et al. (2019), table 2."""

    kind: ClassVar[str] = "r2d2"

    replay: SequencesSettings = field(default_factory=SequencesSettings)

    hidden_units: int = setting(512, "units of layers before and behind the recurrent core", NETWORK, at_least=1)
    core: str = setting("lstm", "recurrent core", NETWORK, choices=("lstm", "gru"))
    core_units: int = setting(512, "units of the recurrent core", NETWORK, at_least=1)
    dueling: bool = again(QSettings, dueling=True)

    stored_state: bool = setting(
        True, "windows begin with the recurrent state that was stored with them, otherwise with zeros", LEARNING
    )
    n_step: int = setting(5, "rewards summed before the bootstrap; fewer at a window's end", LEARNING, at_least=1)
    rescale: bool = setting(True, "learn values rescaled by sign(x) (sqrt(|x| + 1) - 1) + .001 x", LEARNING)
    lr: float = again(QSettings, lr=1e-4)
    adam_eps: float = again(QSettings, adam_eps=1e-3)
    max_grad_norm: float = again(QSettings, max_grad_norm=40.0)


@dataclass(frozen=True, eq=False, kw_only=True)
class R2D2State(QState):
    """Acting state.

    Attributes:
        core: float32 [lanes, n]: recurrent state, one-hot previous action, previous reward; zeros where an episode
            begins.
    """

    core: npt.NDArray[np.float32]


class R2D2(TargetQAgent):
    """Recurrent Q-network agent: online and target network, and the optimizer."""

    Settings: type[R2D2Settings] = R2D2Settings
    settings: R2D2Settings
    online: RecurrentQNetwork

    # network

    def network(self) -> RecurrentQNetwork:
        from sharpwave.agents.recurrent import RecurrentQNetwork

        settings = self.settings
        torso = self.make_torso(settings.hidden_units)
        return RecurrentQNetwork(torso, settings.core, settings.core_units, self.beside, self.head())

    def head(self) -> nn.Module:
        """Make a fresh head: the core's output -> Q [B, A]."""
        from sharpwave.agents.networks import QHead

        settings = self.settings
        units, dueling, baseline = settings.hidden_units, settings.dueling, settings.dueling_baseline
        return QHead(settings.core_units, units, self.num_actions, dueling, baseline=baseline)

    @property
    def beside(self) -> int:
        """Length of the core's input beside the observation's features: the last action and its reward."""
        return self.num_actions + 1

    # act

    def step_fields(self) -> dict[str, Field]:
        return {CORE: Field((self._core_size,), "float32", every=self.settings.replay.state_every)}

    @property
    def _core_size(self) -> int:
        return self.online.state_size + self.beside

    @property
    def _reward_at(self) -> int:
        """Place of the last reward in a core."""
        return self.online.state_size + self.num_actions

    def begin(self, lanes: int, first_lane: int = 0, of_lanes: int | None = None) -> R2D2State:
        core = np.zeros((lanes, self._core_size), np.float32)
        return R2D2State(**vars(super().begin(lanes, first_lane, of_lanes)), core=core)

    def act(self, obs: Obs, state: R2D2State, step: int, explore: bool = True) -> Acted:
        state = self.enter(obs, state, explore)
        values, recurrent = self.infer(obs, state.core)
        values = legal_rows(values, legal_in(self.spaces, obs))
        choose = self.exploration.choose
        chosen = choose(values, step, state.lanes, state.of, self._rng) if explore else values.argmax(axis=1)
        before, after = state.core, self._behind(state, recurrent)
        after[np.arange(len(chosen)), self.online.state_size + chosen] = 1.0
        state = replace(state, core=after, chosen=chosen, values=values if self._keeps_values else None)
        return Acted(self.actions.actions(chosen), state, {CORE: before})

    def enter(self, obs: Obs, state: R2D2State, explore: bool) -> R2D2State:
        """Return the state in which ``obs`` is seen: for agents that compute something of it first."""
        return state

    def _behind(self, state: R2D2State, recurrent: Any) -> npt.NDArray[np.float32]:
        """Return the core after an observation, in which no action was made yet."""
        core = np.zeros_like(state.core)
        core[:, : self.online.state_size] = recurrent
        return core

    def replaced(self, state: R2D2State, action: npt.NDArray[Any]) -> R2D2State:
        core, chosen = state.core.copy(), self.actions.numbers(action)
        core[:, self.online.state_size : self._reward_at] = np.eye(self.num_actions, dtype=np.float32)[chosen]
        return replace(state, core=core, chosen=chosen)

    def infer(self, obs: Obs, *memory: Rows) -> tuple[Rows, ...]:
        """Return Q [N, A], and the recurrent state after the step [N, n]; ``memory`` is the lanes' core before it."""
        with torch.inference_mode():
            recurrent, previous = self._parted(memory[0])
            q, recurrent = self.online.step(self.inputs(to_tensors(obs, self.device)), previous, recurrent)
            return q.cpu().numpy(), recurrent.cpu().numpy()

    def memory(self) -> dict[str, tuple[int, ...]]:
        return {CORE: (self._reward_at,), "reward": ()}

    def decide(self, obs: Any, memory: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        core, reward = memory[CORE], memory["reward"]
        recurrent, action = core.tensor_split([self.online.state_size], dim=1)
        beside = torch.cat([action, reward.unsqueeze(1)], dim=1)
        q, recurrent = self.online.step(self.inputs(obs), beside, recurrent)
        number = with_legal(q, legal_in(self.spaces, obs)).argmax(dim=1)
        after = torch.cat([recurrent, nn.functional.one_hot(number, self.num_actions).to(recurrent.dtype)], dim=1)
        return self.actions.actions(number), {CORE: after}

    def _parted(self, core: npt.NDArray[np.float32]) -> tuple[Tensor, Tensor]:
        """Split cores into the recurrent state [lanes, n], and the core's input beside it [lanes, beside]."""
        recurrent, previous = torch.from_numpy(core).to(self.device).tensor_split([self.online.state_size], dim=1)
        return recurrent, previous

    def differentiable_q(self, inputs: Any, state: R2D2State) -> Tensor:
        recurrent, previous = self._parted(state.core)
        return self.online.step(inputs, previous, recurrent)[0]

    def observe(self, state: R2D2State, reward: npt.NDArray[Any], ended: npt.NDArray[np.bool_]) -> R2D2State:
        core = state.core.copy()  # the one that was acted with may still be on its way into the store
        core[:, self._reward_at] = reward
        core[ended] = 0.0
        return replace(state, core=core)

    def values_along(self, obs: Obs, action: npt.NDArray[Any], reward: npt.NDArray[Any], state: R2D2State) -> Valued:
        values = np.empty((len(reward), self.num_actions), np.float32)
        for t in range(len(reward)):
            one = {name: part[t : t + 1] for name, part in obs.items()} if isinstance(obs, dict) else obs[t : t + 1]
            state = self.enter(one, state, explore=False)
            values[t], recurrent = self.infer(one, state.core)
            state = self.replaced(replace(state, core=self._behind(state, recurrent)), action[t : t + 1])
            state = self.observe(state, reward[t : t + 1], np.zeros(1, np.bool_))
        if self.settings.rescale:
            values = signed_parabolic(torch.from_numpy(values)).numpy()
        values = legal_rows(values, legal_in(self.spaces, obs))
        return Valued(values, self.actions.numbers(action), state)

    def initial_errors(self, lanes: int, kept: int) -> NStepErrors | None:
        replay, settings = self.settings.replay, self.settings
        if not replay.prioritized:
            return None
        self._keeps_values = True
        n_step = min(settings.n_step, replay.length)  # as a window's last step cuts its returns
        return NStepErrors(
            lanes, n_step, replay.gamma, kept, self._final_values, RESCALING_EPS if settings.rescale else 0.0
        )

    def _final_values(self, obs: Obs, acted: Acted, reward: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Return Q [lanes, A] of the observations after an action."""
        going_on = self.observe(acted.state, reward, np.zeros(len(acted.action), np.bool_))
        return legal_rows(self.infer(obs, going_on.core)[0], legal_in(self.spaces, obs))

    # learn

    def loss(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Compute the weighted mean over windows of each one's mean loss, and TD errors, unweighted, float32 [B, L]."""
        settings, burn_in = self.settings, batch.burn_in
        mask = batch.mask[:, burn_in:]
        q = self._unroll(self.online, batch)
        with torch.no_grad():
            next_q = self._unroll(self.target, batch)[:, 1:]
            chooses = q[:, 1:] if settings.double else next_q
            chosen = with_legal(chooses, self.legal_along(batch, 1)).argmax(dim=2, keepdim=True)
            value = next_q.gather(2, chosen).squeeze(2)
            value = signed_parabolic(value) if settings.rescale else value
            ends = window_ends(mask)
            reward, discount = batch.step_reward[:, burn_in:], batch.discount[:, burn_in:]
            targets = n_step_targets(reward, discount, value, ends, settings.n_step)
            targets = signed_hyperbolic(targets) if settings.rescale else targets
        action = self.actions.numbers(batch.action[:, burn_in:])
        td_error = (targets - q[:, :-1].gather(2, action.unsqueeze(2)).squeeze(2)) * mask
        losses = 0.5 * td_error.square().sum(dim=1) / mask.sum(dim=1)
        return (batch.weights * losses).mean(), td_error.detach()

    def legal_along(self, batch: Any, behind: int = 0) -> Tensor | None:
        """Return the legal actions of the trained steps and the one after them, from that ``behind`` the first on,
        bool [B, L + 1 - behind, A]; None: all are."""
        if not self.spaces.masked:
            return None
        legal: Tensor = legal_in(self.spaces, batch.obs)
        return legal[:, batch.burn_in + behind : batch.mask.shape[1] + 1]

    def _unroll(self, network: RecurrentQNetwork, batch: Any) -> Tensor:
        """Return Q of the trained steps and the one after them, float32 [B, L + 1, A]."""
        size, columns = batch.mask.shape[0], batch.mask.shape[1] + 1
        inputs = self.inputs(map_leaves(lambda one: one[:, :columns].flatten(0, 1), batch.obs))
        recurrent, before = batch[CORE].split([self.online.state_size, self.beside], dim=1)
        made = self.made(batch)
        previous = torch.cat([made.new_zeros(size, 1, made.shape[2]), made], dim=1)  # by the column that observes it
        if not self.settings.stored_state:
            recurrent = torch.zeros_like(recurrent)
        begin = batch.mask.int().argmax(dim=1)
        previous[torch.arange(size, device=begin.device), begin] = before
        return network.unroll(inputs, previous, recurrent, begin, batch.burn_in)

    def made(self, batch: Any) -> Tensor:
        """Return each action and its reward, which the core gets with the next observation, float32 [B, T, beside]."""
        one_hot = nn.functional.one_hot(self.actions.numbers(batch.action), self.num_actions)
        return torch.cat([one_hot.float(), batch.step_reward.unsqueeze(2)], dim=2)


def n_step_targets(reward: Tensor, discount: Tensor, value: Tensor, ends: Tensor, n_step: int) -> Tensor:
    """Compute n-step targets within a window: up to ``n_step`` rewards, then the value of the step after them.

    Args:
        reward, discount: float [B, T], r_{t+1} and gamma_{t+1} = gamma * (1 - terminated) for step t.
        value: float [B, T], v(s_{t+1}): of the observation after step t.
        ends: bool [B, T], a step after which the sum is cut and bootstraps: an episode's last one, or the window's.
    Returns:
        float [B, T].
    Source: Sutton and Barto (2018), eq. 7.1, cut at the window's end.
    """
    assert reward.shape == discount.shape == value.shape == ends.shape, (reward.shape, discount.shape, value.shape)
    assert bool(ends[:, -1].all()), "a window's last column ends every sum"
    steps = reward.shape[1]
    target = value.new_zeros(value.shape)
    for k in reversed(range(min(n_step, steps))):  # from the last reward back: target <- r + gamma * target
        behind = value[:, k:] if k == n_step - 1 else torch.where(ends[:, k:], value[:, k:], target[:, : steps - k])
        target[:, : steps - k] = reward[:, k:] + discount[:, k:] * behind
    return target
