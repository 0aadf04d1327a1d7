"""Every agent passes the suite of agents, over several kinds of observations."""

from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

import sharpwave as sw
from sharpwave.agents.a2c import A2C, A3C
from sharpwave.agents.bc import BC, PairsSettings
from sharpwave.agents.calql import CalQL, CalQLTransitions
from sharpwave.agents.cql import CQL
from sharpwave.agents.crossq import CrossQ
from sharpwave.agents.dqn import DQN
from sharpwave.agents.exploration import EpsilonGreedy, Softmax
from sharpwave.agents.impala import IMPALA
from sharpwave.agents.iql import IQL, IQLTransitions
from sharpwave.agents.masac import MASAC
from sharpwave.agents.ppo import PPO
from sharpwave.agents.pqn import PQN
from sharpwave.agents.protocol import Spaces
from sharpwave.agents.r2d2 import R2D2, SequencesSettings
from sharpwave.agents.r2d3 import R2D3
from sharpwave.agents.rainbow import Rainbow
from sharpwave.agents.rebrac import ReBRAC, ReBRACTransitions
from sharpwave.agents.replay import TransitionsSettings
from sharpwave.agents.rlpd import RLPD
from sharpwave.agents.rollouts import MinibatchSettings, RolloutSettings
from sharpwave.agents.sac import SAC
from sharpwave.agents.td3 import TD3
from sharpwave.agents.td3bc import TD3BC
from sharpwave.agents.vdn import QMIX, VDN
from sharpwave.testing.agent import AgentSuite

EXPLORING = EpsilonGreedy(start=0.5, end=0.5)
WINDOWS = SequencesSettings(batch_size=8, length=6, burn_in=4, stride=2)


class TestDQN(AgentSuite):
    def make_agent(self, spaces, seed):
        settings = DQN.Settings(hidden_units=16, exploration=EXPLORING, replay=TransitionsSettings(batch_size=8))
        return DQN(spaces, settings, seed=seed)


@pytest.mark.slow
class TestPrioritizedDQN(AgentSuite):
    """With all its options: averaged, dueling, three steps, soft targets, a falling learning rate."""

    def make_agent(self, spaces, seed):
        settings = DQN.Settings(
            hidden_units=16, dueling=True, target_tau=0.1, average_decay=0.9, lr_end=1e-5, lr_steps=500,
            exploration=EpsilonGreedy(steps=200, ladder=7.0),
            replay=TransitionsSettings(batch_size=8, n_step=3, prioritized=True),
        )  # fmt: skip
        return DQN(spaces, settings, seed=seed)


@pytest.mark.slow
class TestSoftmaxDQN(AgentSuite):
    """Its actions are two switches."""

    spaces = Spaces(AgentSuite.spaces.observation, MultiBinary(2))

    def make_agent(self, spaces, seed):
        settings = DQN.Settings(
            hidden_units=16, explore="softmax", softmax=Softmax(steps=100, hold=50, ladder=10.0),
            replay=TransitionsSettings(batch_size=8, prioritized=True),
        )  # fmt: skip
        return DQN(spaces, settings, seed=seed)


@pytest.mark.slow
class TestDQNOverImages(AgentSuite):
    """Standardized, with numbers and categories beside them; actions are counted from 2."""

    spaces = Spaces(
        Dict(picture=Box(0, 255, (12, 10, 3), np.uint8), speed=Box(-1, 1, (2,), np.float32), gear=Discrete(4)),
        Discrete(3, start=2),
    )

    def make_agent(self, spaces, seed):
        settings = DQN.Settings(
            hidden_units=16, standardize=True, target_every=50, exploration=EXPLORING,
            replay=TransitionsSettings(batch_size=8),
        )  # fmt: skip
        agent = DQN(spaces, settings, seed=seed)
        agent.FIRST_LOOK = 32
        return agent


class TestRainbow(AgentSuite):
    """Its actions have two parts."""

    spaces = Spaces(AgentSuite.spaces.observation, MultiDiscrete([2, 3]))

    def make_agent(self, spaces, seed):
        replay = TransitionsSettings(batch_size=8, n_step=3, prioritized=True)
        return Rainbow(spaces, Rainbow.Settings(hidden_units=16, target_every=50, replay=replay), seed=seed)


@pytest.mark.slow
class TestSelfPrediction(AgentSuite):
    """Over MinAtar's observations, standardized and shifted, acting by the target network, reset every few updates."""

    spaces = Spaces(Box(0, 1, (10, 10, 4), np.bool_), MultiDiscrete([2, 3]))

    def make_agent(self, spaces, seed):
        settings = Rainbow.Settings(
            hidden_units=16, self_prediction=4, random_shift=1, standardize=True, act_by_target=True, reset_every=3,
            replay=TransitionsSettings(batch_size=8, n_step=2, prioritized=True),
        )  # fmt: skip
        return Rainbow(spaces, settings, seed=seed)


@pytest.mark.slow
class TestIQN(AgentSuite):
    """Over MinAtar's observations, with Munchausen rewards, averaged, without noise."""

    spaces = Spaces(Box(0, 1, (10, 10, 4), np.bool_), Discrete(3))

    def make_agent(self, spaces, seed):
        settings = Rainbow.Settings(
            hidden_units=16, head="iqn", quantiles=4, noisy=False, munchausen=0.9, average_decay=0.9,
            exploration=EXPLORING, replay=TransitionsSettings(batch_size=8, prioritized=True),
        )  # fmt: skip
        return Rainbow(spaces, settings, seed=seed)


@pytest.mark.slow
class TestQR(AgentSuite):
    """Noisy, with actions counted from 2 and soft target updates."""

    spaces = Spaces(Dict(speed=Box(-1, 1, (2,), np.float32), gear=Discrete(4)), Discrete(3, start=2))

    def make_agent(self, spaces, seed):
        settings = Rainbow.Settings(
            hidden_units=16, head="qr", quantiles=5, dueling_baseline="max", target_tau=0.1,
            replay=TransitionsSettings(batch_size=8),
        )  # fmt: skip
        return Rainbow(spaces, settings, seed=seed)


class TestPQN(AgentSuite):
    """Actions have two parts, counted from 1 and -2; windows are short enough for 20 batches."""

    spaces = Spaces(
        Dict(speed=Box(-1, 1, (2,), np.float32), gear=Discrete(4)), MultiDiscrete([3, 2], dtype=np.int8, start=[1, -2])
    )

    def make_agent(self, spaces, seed):
        settings = PQN.Settings(
            hidden_units=16, exploration=EXPLORING, replay=RolloutSettings(batch_size=3, length=4, epochs=4)
        )
        return PQN(spaces, settings, seed=seed)


class TestA2C(AgentSuite):
    """Over numbers and categories; actions have two parts; the learning rate falls."""

    spaces = TestPQN.spaces

    def make_agent(self, spaces, seed):
        settings = A2C.Settings(
            hidden_units=16, lr_end=1e-5, lr_steps=500, replay=RolloutSettings(batch_size=2, length=4, epochs=1)
        )
        return A2C(spaces, settings, seed=seed)


@pytest.mark.slow
class TestA3C(AgentSuite):
    def make_agent(self, spaces, seed):
        settings = A3C.Settings(hidden_units=16, replay=RolloutSettings(batch_size=1, length=4, epochs=1))
        return A3C(spaces, settings, seed=seed)


class TestIMPALA(AgentSuite):
    """Over images, numbers and categories; actions are counted from 2."""

    spaces = TestDQNOverImages.spaces

    def make_agent(self, spaces, seed):
        settings = IMPALA.Settings(hidden_units=16, replay=RolloutSettings(batch_size=2, length=4, epochs=1))
        return IMPALA(spaces, settings, seed=seed)


class TestPPO(AgentSuite):
    """Over MinAtar's observations."""

    spaces = TestIQN.spaces

    def make_agent(self, spaces, seed):
        settings = PPO.Settings(hidden_units=16, replay=MinibatchSettings(batch_size=3, length=4, epochs=4))
        return PPO(spaces, settings, seed=seed)


@pytest.mark.slow
class TestPPOOfContinuousActions(AgentSuite):
    """One number is bounded on both sides, the other on one."""

    spaces = Spaces(
        AgentSuite.spaces.observation,
        Box(np.array([[-0.5], [0.0]], np.float32), np.array([[0.01], [np.inf]], np.float32)),
    )

    def make_agent(self, spaces, seed):
        settings = PPO.Settings(hidden_units=16, replay=MinibatchSettings(batch_size=3, length=4, epochs=4))
        return PPO(spaces, settings, seed=seed)


class TestPPOInMinibatches(TestPPOOfContinuousActions):
    """With noise that is held for several steps, normalized observations and rewards, and rewards for novelty."""

    def make_agent(self, spaces, seed):
        replay = MinibatchSettings(batch_size=1, length=4, epochs=2, minibatch_size=2)
        settings = PPO.Settings(
            hidden_units=16,
            sde_every=3,
            orthogonal=True,
            normalize_obs=True,
            normalize_reward=True,
            novelty="rnd",
            replay=replay,
        )
        return PPO(spaces, settings, seed=seed)


class TestBC(AgentSuite):
    """Over numbers and categories; actions have two parts."""

    spaces = Spaces(Dict(speed=Box(-1, 1, (2,), np.float32), gear=Discrete(4)), MultiDiscrete([2, 3]))

    def make_agent(self, spaces, seed):
        return BC(spaces, BC.Settings(hidden_units=16, replay=PairsSettings(batch_size=8)), seed=seed)


@pytest.mark.slow
class TestBCOfContinuousActions(AgentSuite):
    """One number is bounded on both sides, the other on one."""

    spaces = Spaces(
        AgentSuite.spaces.observation,
        Box(np.array([[-0.5], [0.0]], np.float32), np.array([[0.01], [np.inf]], np.float32)),
    )

    def make_agent(self, spaces, seed):
        return BC(spaces, BC.Settings(hidden_units=16, replay=PairsSettings(batch_size=8)), seed=seed)


class TestBCByLikelihood(TestBCOfContinuousActions):
    """Of a Gaussian; of actions with a missing bound."""

    def make_agent(self, spaces, seed):
        settings = BC.Settings(hidden_units=16, likelihood="gaussian", replay=PairsSettings(batch_size=8))
        return BC(spaces, settings, seed=seed)


@pytest.mark.slow
class TestBCBySquashedLikelihood(AgentSuite):
    """Over standardized numbers."""

    spaces = Spaces(
        AgentSuite.spaces.observation, Box(np.array([-2.0, 0.5], np.float32), np.array([2.0, 3.0], np.float32))
    )

    def make_agent(self, spaces, seed):
        settings = BC.Settings(hidden_units=16, likelihood="tanh", standardize=True, replay=PairsSettings(batch_size=8))
        return BC(spaces, settings, seed=seed)


class TestSAC(AgentSuite):
    """Its first actions are random."""

    spaces = Spaces(
        AgentSuite.spaces.observation, Box(np.array([-2.0, 0.5], np.float32), np.array([2.0, 3.0], np.float32))
    )

    def make_agent(self, spaces, seed):
        settings = SAC.Settings(hidden_units=16, random_steps=30, replay=TransitionsSettings(batch_size=8))
        return SAC(spaces, settings, seed=seed)


@pytest.mark.slow
class TestTQC(AgentSuite):
    """SAC of quantiles, with normalized observations, priorities, and a policy that is updated less often."""

    spaces = Spaces(Dict(speed=Box(-1, 1, (2,), np.float32), gear=Discrete(4)), TestSAC.spaces.action)

    def make_agent(self, spaces, seed):
        settings = SAC.Settings(
            hidden_units=16, random_steps=30, critics=3, quantiles=5, normalize_obs=True, policy_delay=2,
            layer_norm=True, dropout=0.1, replay=TransitionsSettings(batch_size=8, prioritized=True),
        )  # fmt: skip
        return SAC(spaces, settings, seed=seed)


@pytest.mark.slow
class TestSimBa(AgentSuite):
    """SAC of residual blocks and several critics, whose networks begin anew again and again."""

    spaces = TestSAC.spaces

    def make_agent(self, spaces, seed):
        settings = SAC.Settings(
            hidden_units=8, random_steps=30, blocks="simba", normalize_obs=True, weight_decay=0.01, critics=4,
            target_critics=2, reset_every=7, replay=TransitionsSettings(batch_size=8),
        )  # fmt: skip
        return SAC(spaces, settings, seed=seed)


class TestTD3(AgentSuite):
    """Over images, numbers and categories, with priorities and three steps; an action is a matrix of float64."""

    spaces = Spaces(
        Dict(picture=Box(0, 255, (12, 10, 3), np.uint8), speed=Box(-1, 1, (2,), np.float32), gear=Discrete(4)),
        Box(-1, 1, (2, 2), np.float64),
    )

    def make_agent(self, spaces, seed):
        replay = TransitionsSettings(batch_size=8, n_step=3, prioritized=True)
        return TD3(spaces, TD3.Settings(hidden_units=16, random_steps=0, replay=replay), seed=seed)


class TestCrossQ(AgentSuite):
    """With priorities and a given temperature; its networks have statistics beside their weights."""

    spaces = Spaces(Dict(speed=Box(-1, 1, (2,), np.float32), gear=Discrete(4)), TestSAC.spaces.action)

    def make_agent(self, spaces, seed):
        settings = CrossQ.Settings(
            hidden_units=16, critic_units=24, random_steps=30, temperature=0.1,
            replay=TransitionsSettings(batch_size=8, prioritized=True),
        )  # fmt: skip
        return CrossQ(spaces, settings, seed=seed)


class TestTD3BC(AgentSuite):
    """Over numbers and categories, with priorities and three steps."""

    spaces = TestCrossQ.spaces

    def make_agent(self, spaces, seed):
        replay = TransitionsSettings(batch_size=8, n_step=3, prioritized=True)
        return TD3BC(spaces, TD3BC.Settings(hidden_units=16, random_steps=0, replay=replay), seed=seed)


class TestReBRAC(AgentSuite):
    """Over numbers and categories, with two steps."""

    spaces = TestCrossQ.spaces

    def make_agent(self, spaces, seed):
        replay = ReBRACTransitions(batch_size=8, n_step=2)
        return ReBRAC(spaces, ReBRAC.Settings(hidden_units=16, replay=replay), seed=seed)


class TestCalQL(AgentSuite):
    """Over numbers and categories, with priorities."""

    spaces = TestCrossQ.spaces

    def make_agent(self, spaces, seed):
        replay = CalQLTransitions(batch_size=8, prioritized=True)
        return CalQL(spaces, CalQL.Settings(hidden_units=16, sampled_actions=3, replay=replay), seed=seed)


class TestCQL(AgentSuite):
    """Averaged, with priorities; actions are counted from 2."""

    spaces = Spaces(AgentSuite.spaces.observation, Discrete(3, start=2))

    def make_agent(self, spaces, seed):
        settings = CQL.Settings(
            hidden_units=16, average_decay=0.9, exploration=EXPLORING,
            replay=TransitionsSettings(batch_size=8, prioritized=True),
        )  # fmt: skip
        return CQL(spaces, settings, seed=seed)


class TestIQL(AgentSuite):
    """With priorities, over numbers and categories; actions have two parts."""

    spaces = TestBC.spaces

    def make_agent(self, spaces, seed):
        replay = IQLTransitions(batch_size=8, prioritized=True)
        return IQL(spaces, IQL.Settings(hidden_units=16, replay=replay), seed=seed)


@pytest.mark.slow
class TestIQLOfContinuousActions(AgentSuite):
    """One number is bounded on both sides, the other on one."""

    spaces = TestBCOfContinuousActions.spaces

    def make_agent(self, spaces, seed):
        return IQL(spaces, IQL.Settings(hidden_units=16, replay=IQLTransitions(batch_size=8)), seed=seed)


class TestR2D2(AgentSuite):
    """Its actions are a matrix of parts, counted from 1 and 2."""

    spaces = Spaces(AgentSuite.spaces.observation, MultiDiscrete(np.array([[2, 3]]), start=np.array([[1, 2]])))

    def make_agent(self, spaces, seed):
        settings = R2D2.Settings(hidden_units=16, core_units=8, exploration=EXPLORING, replay=WINDOWS)
        return R2D2(spaces, settings, seed=seed)


@pytest.mark.slow
class TestR2D2WithAGRU(AgentSuite):
    """Sampled uniformly and without burn-in, over images, numbers and categories; actions are counted from 2."""

    spaces = TestDQNOverImages.spaces

    def make_agent(self, spaces, seed):
        settings = R2D2.Settings(
            hidden_units=16, core_units=8, core="gru", exploration=EXPLORING, target_every=50, average_decay=0.9,
            replay=SequencesSettings(batch_size=8, length=5, burn_in=0, stride=3, prioritized=False),
        )  # fmt: skip
        return R2D2(spaces, settings, seed=seed)


class TestR2D3(AgentSuite):
    """Its actions are counted from -9: the zeros that pad windows are none of them."""

    spaces = Spaces(AgentSuite.spaces.observation, Discrete(4, start=-9))
    folder: Path

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def demonstrations(cls, tmp_path_factory):
        """Two episodes of a policy that nobody would call an expert."""
        folder, rng = tmp_path_factory.mktemp("demonstrations") / "store", np.random.default_rng(0)
        with sw.Store(sw.Spec(obs=sw.Field((3,), "float32"), action=sw.Field((), "int64")), capacity=100) as store:
            for step in range(20):
                obs = rng.normal(size=(2, 3)).astype(np.float32)
                store.append(
                    obs=obs[0], action=step % 4 - 9, reward=float(step), terminated=step % 10 == 9, truncated=False,
                    final_obs=obs[1],
                )  # fmt: skip
            store.checkpoint(folder)
        cls.folder = folder

    def make_agent(self, spaces, seed):
        settings = R2D3.Settings(
            hidden_units=16, core_units=8, exploration=EXPLORING, replay=WINDOWS, demonstrations=str(self.folder),
            demonstration_share=0.5,
        )  # fmt: skip
        return R2D3(spaces, settings, seed=seed)


class TestRLPD(AgentSuite):
    """SAC of a subset of critics, with priorities in both of its memories."""

    spaces = TestSAC.spaces
    folder: Path

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def demonstrations(cls, tmp_path_factory):
        """Two episodes of random actions."""
        folder, rng = tmp_path_factory.mktemp("demonstrations") / "store", np.random.default_rng(0)
        with sw.Store(sw.Spec(obs=sw.Field((3,), "float32"), action=sw.Field((2,), "float32")), capacity=100) as store:
            for step in range(20):
                obs = rng.normal(size=(2, 3)).astype(np.float32)
                store.append(
                    obs=obs[0], action=rng.uniform([-2.0, 0.5], [2.0, 3.0]), reward=float(step),
                    terminated=step % 10 == 9, truncated=False, final_obs=obs[1],
                )  # fmt: skip
            store.checkpoint(folder)
        cls.folder = folder

    def make_agent(self, spaces, seed):
        settings = RLPD.Settings(
            hidden_units=8, random_steps=30, critics=4, policy_delay=2, demonstrations=str(self.folder),
            replay=TransitionsSettings(batch_size=8, prioritized=True),
        )  # fmt: skip
        return RLPD(spaces, settings, seed=seed)


class TestVDN(AgentSuite):
    """Of three agents, some absent at random, with three steps and priorities."""

    spaces = Spaces(
        Dict(agents=Box(-1, 1, (3, 2), np.float32), action_mask=MultiBinary((3, 4))), MultiDiscrete([4, 4, 4])
    )

    def make_agent(self, spaces, seed):
        replay = TransitionsSettings(batch_size=8, n_step=3, prioritized=True)
        return VDN(spaces, VDN.Settings(hidden_units=16, exploration=EXPLORING, replay=replay), seed=seed)


class TestQMIX(AgentSuite):
    """Of two agents with pictures of their own, and a state that they do not see."""

    spaces = Spaces(
        Dict(
            agents=Box(0, 255, (2, 6, 5), np.uint8), action_mask=Box(0, 1, (2, 3), np.bool_), state=Box(-1, 1, (2, 2))
        ),
        MultiDiscrete([3, 3]),
    )

    def make_agent(self, spaces, seed):
        replay = TransitionsSettings(batch_size=8)
        return QMIX(spaces, QMIX.Settings(hidden_units=16, exploration=EXPLORING, replay=replay), seed=seed)


class TestMASAC(AgentSuite):
    """Of three agents, some absent at random, with priorities."""

    spaces = TestVDN.spaces

    def make_agent(self, spaces, seed):
        replay = TransitionsSettings(batch_size=8, prioritized=True)
        return MASAC(spaces, MASAC.Settings(hidden_units=16, replay=replay), seed=seed)


class TestRecurrentVDN(AgentSuite):
    """Of three agents that remember, with priorities, from windows shorter than episodes."""

    spaces = TestVDN.spaces

    def make_agent(self, spaces, seed):
        replay = TransitionsSettings(batch_size=8, n_step=2, prioritized=True)
        settings = VDN.Settings(recurrent=True, length=6, hidden_units=16, exploration=EXPLORING, replay=replay)
        return VDN(spaces, settings, seed=seed)


@pytest.mark.slow
class TestRecurrentMASAC(AgentSuite):
    """With pictures and a state, from rewards that are standardized."""

    spaces = TestQMIX.spaces

    def make_agent(self, spaces, seed):
        settings = MASAC.Settings(
            recurrent=True,
            length=6,
            hidden_units=16,
            standardize_rewards=True,
            replay=TransitionsSettings(batch_size=8),
        )
        return MASAC(spaces, settings, seed=seed)
