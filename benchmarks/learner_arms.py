"""Arms of ``learners.py``: the agents on each task, with their recipes, settings and seeds, and peers beside them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from learner_data import ENVS, QUALITIES

from sharpwave.bench.learning_runs import EPSILON


@dataclass(frozen=True)
class Arm:
    """An agent on a task: a recipe and the settings that differ from it.

    Attributes:
        changes: settings; "{seed}" in a text stands for the run's seed.
        demonstrated: it learns from recorded episodes of the task's expert.
        epsilon: probability of a random action when it is measured.
        seeds: those that are run unless ``--seeds`` names others: none that a setting was chosen by.
        peer: another library's agent in the recipe's environment, for as many steps: arguments of
            ``learner_peers.trained``; of ``{}`` it is Stable-Baselines3's with the recipe's settings. None: ours.
        fitted: the recipe is an algorithm's name, whose own settings suit the run's length, as in ``sw.train``.
        data: name of a data set of ``learner_data``. The recipe is an offline algorithm that learns from the set, or
            "data", whose scores are the returns of the set's episodes.
    """

    recipe: str
    changes: dict[str, Any] = field(default_factory=dict)
    demonstrated: bool = False
    epsilon: float = EPSILON
    seeds: tuple[int, ...] = (101, 102, 103, 104, 105)
    peer: dict[str, Any] | None = None
    fitted: bool = False
    data: str = ""


FOUR_FRAMES = {
    "num_envs": 8, "steps": 40_000, "network": "mlp", "hidden_units": 64, "learning_rate": 1e-3, "target_tau": 0.0,
    "target_every": 800, "average_decay": 0.0, "n_step": 5, "batch_size": 128, "update_every": 8, "gamma": 0.99,
    "epsilon_end": 0.05, "epsilon_steps": 10_000, "evaluate_every": 0, "codec": "raw",
}  # fmt: skip
"""A DQN over stacks of four observations, otherwise with what the recurrent recipes have."""

TASKS: dict[str, dict[str, Arm]] = {
    "tmaze": {
        "r2d2": Arm("tmaze", seeds=(401, 402, 403, 404, 405)),
        "dqn-4-frames": Arm(
            "gymnasium", FOUR_FRAMES | {"env": "learner_tasks:TMaze4-v0"}, seeds=(401, 402, 403, 404, 405)
        ),
    },
    "lock": {
        "r2d3": Arm("lock", demonstrated=True),
        "r2d2": Arm("tmaze", {"env": "sharpwave/Lock-v0", "length": 8, "burn_in": 0, "stride": 8}),
        "dqn-4-frames-demonstrated": Arm(
            "demonstrated-dqn", FOUR_FRAMES | {"env": "learner_tasks:Lock4-v0", "demonstration_share": 0.25}, True
        ),
    },
}

REPEAT_FIRST = {
    "env": "popgym:popgym-RepeatFirstEasy-v0", "length": 52, "stride": 52, "burn_in": 0, "gamma": 0.5, "n_step": 1,
    "adam_eps": 1e-7,
}  # fmt: skip
"""A window is an episode. What an action is worth shows at once, in rewards of 1/51."""
OF_OTHERS = {
    "repeat-first": {"r2d2": Arm("tmaze", REPEAT_FIRST, seeds=(401, 402, 403))},
    "memory-chain": {"r2d2": Arm("tmaze", {"env": "learner_tasks:MemoryChain-v0"}, seeds=(401, 402, 403))},
}
"""Memory tasks of popgym and bsuite, which no extra installs."""

MINATAR_AGENTS = {
    "dqn": Arm("minatar", seeds=(101, 102, 103, 104, 105, 106, 107)),
    "dqn+": Arm("minatar", {"double": True, "n_step": 3}),
    "rainbow": Arm("minatar-rainbow", seeds=(121, 122, 123, 124, 125)),
    "iqn": Arm("minatar-iqn"),
    "pqn": Arm("minatar-pqn"),
}
MINATAR_GAMES = {
    "breakout": "Breakout", "asterix": "Asterix", "freeway": "Freeway", "seaquest": "Seaquest",
    "space_invaders": "SpaceInvaders",
}  # fmt: skip
MINATAR = {
    f"minatar-{game}": {
        agent: replace(arm, changes=arm.changes | {"env": f"MinAtar/{name}-v1", "evaluate_every": 0})
        for agent, arm in MINATAR_AGENTS.items()
    }
    for game, name in MINATAR_GAMES.items()
}
"""All from the same network, samples and updates, but PQN, which keeps no replay memory."""

ATARI = {
    "breakout": {
        "rainbow": Arm("atari", {"env": "breakout", "threads": 1, "max_minutes": 60.0}, seeds=(301, 302, 303)),
    },
    **{
        game: {"rainbow": Arm("atari", {"env": game, "threads": 1, "sticky": 0.25, "steps": 500_000}, seeds=(321,))}
        for game in ("seaquest", "qbert")
    },
}
PONG_FAIR = {
    "sticky": 0.25, "actions": "", "crop": "0:210", "steps": 500_000, "stop_reward": None, "stop_worst": None,
    "evaluate_every": 250_000, "evaluate_from": None,
}  # fmt: skip
ATARI["pong-fair"] = {"rainbow": Arm("pong", PONG_FAIR, seeds=(321,))}
"""Recipe ``pong`` on the game as Machado et al. (2018) ask for it: sticky actions, all six, the whole screen."""
FIXED: dict[str, Any] = {"stop_reward": None, "evaluate_every": 0}
STALE = FIXED | {"steps": 300_000, "learning_rate_end": 1e-5, "learning_rate_steps": 300_000, "entropy_cost": 0.1}
"""Chosen with V-trace on seeds 100 to 104. The recipe's own settings were tried first, on seeds 0 to 4."""
OURS = (0, 1, 2, 3, 4)
FIRST = (*range(10), *range(20, 25))
"""Seeds of the recipe's own settings, which no run with old weights had a part in choosing."""
ON_POLICY = {
    "cartpole": {
        **{f"ppo-k{k}": Arm("cartpole-ppo", FIXED | {"epochs": k}, seeds=OURS) for k in (1, 2, 4)},
        **{agent: Arm(f"cartpole-{agent}", FIXED, seeds=OURS) for agent in ("impala", "a2c", "a3c")},
    },
    "cartpole-stale": {
        "v-trace": Arm("stale-impala", STALE, seeds=(10, 11, 12, 13, 14)),
        "without": Arm("stale-impala", STALE | {"vtrace": False}, seeds=(10, 11, 12, 13, 14)),
        "v-trace-first": Arm("stale-impala", FIXED, seeds=FIRST),
        "without-first": Arm("stale-impala", FIXED | {"vtrace": False}, seeds=FIRST),
    },
    "minatar-ppo": {
        f"k{k}": Arm("minatar-ppo", {"epochs": k, "evaluate_every": 0, "steps": 250_000}, seeds=OURS) for k in (1, 2, 4)
    },
}
"""Agents that use data up; ``cartpole-stale``: acting with weights 1 to 10 versions old (learner_tasks.py)."""
PEER = "stable-baselines3 "
"""Prefix of the names of Stable-Baselines3's agents."""
MUJOCO = {
    task: {
        who + agent: Arm(
            agent,
            {"env": env, "steps": 50_000 if agent == "td3" else steps, "evaluate_every": 0} | first,
            epsilon=0.0,
            seeds=OURS[:3],
            peer={} if who == PEER else None,
        )
        for who, agent in (("", "sac"), ("", "td3"), ("", "crossq"), (PEER, "sac"), (PEER, "td3"))
    }
    for task, env, steps, first in (
        ("halfcheetah", "HalfCheetah-v5", 50_000, {}),
        ("inverted-pendulum", "InvertedPendulum-v5", 15_000, {"random_steps": 1_000, "warmup_steps": 1_000}),
        ("hopper", "Hopper-v5", 50_000, {}),
    )
}
LUNARLANDER = {"lunarlander": {"dqn": Arm("lunarlander", seeds=(511, 512, 513))}}
TWO_STEP = {"env": "sharpwave/TwoStep-v0", "steps": 10_000, "update_every": 8, "evaluate_every": 0}
OF_SPREAD: dict[str, dict[str, Any]] = {
    "qmix": {"update_every": 8, "learning_rate": 5e-4, "target_tau": 0.005, "n_step": 5},
    "vdn": {"update_every": 8, "n_step": 1},
    "masac": {"update_every": 8, "standardize_rewards": False},
}
"""Settings by which simple_spread's runs were made, with half as many updates as the recipes have."""
UNTRAINED = {"steps": 2_000, "evaluate_every": 0}
"""The warm-up of recipes ``vdn``, ``qmix`` and ``masac``, after which no update has been made."""
MEETING = {"env": "sharpwave/Meeting-v0", "steps": 30_000, "evaluate_every": 0}
OF_EPYMARL: dict[str, Any] = {
    "recurrent": True, "batch_size": 32, "hidden_units": 64, "learning_rate": 3e-4, "target_tau": 0.01, "n_step": 1,
    "gamma": 0.99, "standardize_rewards": True, "evaluate_every": 50_000, "checkpoint_every": 50_000,
}  # fmt: skip
"""Settings of EPyMARL's agents with shared networks, whose updates are of 32 episodes, one an episode."""
FORAGING = OF_EPYMARL | {
    "env": "Foraging-8x8-2p-3f-v3", "steps": 2_000_000, "length": 50, "utd": 0.04, "capacity": 250_000,
}  # fmt: skip
WAREHOUSE = OF_EPYMARL | {
    "env": "rware-tiny-2ag-v2", "steps": 4_000_000, "length": 500, "utd": 0.002, "capacity": 1_000_000,
}  # fmt: skip
FALLING = {"epsilon_end": 0.05, "epsilon_steps": 200_000}
TEAMS = {
    "meeting": {
        "qmix": Arm("qmix", MEETING | {"epsilon_steps": 12_000}, seeds=OURS),
        "vdn": Arm("vdn", MEETING | {"epsilon_steps": 12_000}, seeds=OURS),
        "masac": Arm("masac", MEETING, seeds=OURS),
        "qmix one reward": Arm("qmix", MEETING | {"epsilon_steps": 12_000, "n_step": 1}, seeds=OURS),
    },
    **{
        task: {
            **{name: Arm(name, changes | FALLING, epsilon=0.0, seeds=OURS) for name in ("qmix", "vdn")},
            "masac": Arm("masac", changes, epsilon=0.0, seeds=OURS),
        }
        for task, changes in (("foraging", FORAGING), ("rware", WAREHOUSE))
    },
    "smax": {
        "qmix": Arm("qmix", {"env": "learner_tasks:Smax3m-v0", "steps": 100_000, "evaluate_every": 0}, seeds=OURS[:1])
    },
    "two-step": {
        "qmix": Arm("qmix", TWO_STEP | {"epsilon_end": 1.0, "n_step": 1}, seeds=OURS),
        "vdn": Arm("vdn", TWO_STEP | {"epsilon_end": 1.0, "n_step": 1}, seeds=OURS),
        "masac": Arm("masac", TWO_STEP | {"standardize_rewards": False}, seeds=OURS),
    },
    "spread": {
        "random": Arm("qmix", UNTRAINED, epsilon=1.0, seeds=OURS),
        **{
            name + what: Arm(name, changes | OF_SPREAD[name], seeds=OURS)
            for name in ("qmix", "vdn", "masac")
            for what, changes in ((" untrained", UNTRAINED), ("", {"evaluate_every": 0}))
        },
    },
}
"""A grid where two agents have to meet; level-based foraging and the multi-robot warehouse; SMAX (learner_tasks.py);
the matrix game of the QMIX paper, under uniform exploration as there; and mpe2's simple_spread."""
RECURRENT = {
    "num_envs": 16, "steps": 200_000, "capacity": 200_000, "codec": "raw", "threads": 1, "checkpoint_every": 100_000,
    "warmup_steps": 2_000, "update_every": 4, "stop_reward": 0.9, "evaluate_every": 10_000, "network": "mlp",
    "hidden_units": 64, "learning_rate": 1e-3, "adam_eps": 1e-5, "target_every": 2_000, "dueling": False,
    "batch_size": 32, "gamma": 0.997, "epsilon_start": 0.2, "epsilon_end": 0.2, "epsilon_steps": 0,
    "core": "gru", "core_units": 64, "rescale": False, "length": 20, "burn_in": 0, "stride": 20,
}  # fmt: skip
NOVELTY = {
    "policies": 4, "min_gamma": 0.97, "max_modulator": 100.0, "max_beta": 3.0, "embedding_size": 16,
    "episodic_memory": 32, "intrinsic_scale": 0.003, "novelty_learning_rate": 1e-5,
}  # fmt: skip
"""Settings of examples/agent57/deep-sea.toml for NGU."""
OF_CORES = {"core", "core_units", "rescale", "length", "burn_in", "stride", "target_every"}
FEEDFORWARD = {name: one for name, one in RECURRENT.items() if name not in OF_CORES and "epsilon" not in name}
SEA = {"env": "learner_tasks:DeepSea{seed}-v0"}
UNSEEN = (10, 11, 12, 13, 14)
"""Settings were chosen on 0 and 100 to 107, and 1 to 4 were looked at meanwhile."""
DEEP_SEA = {
    "deep-sea": {
        "agent57": Arm("agent57", SEA, seeds=UNSEEN),
        "ngu": Arm("ngu", RECURRENT | NOVELTY | SEA, seeds=UNSEEN),
        "r2d2": Arm("r2d2", RECURRENT | SEA, seeds=UNSEEN),
        "dqn": Arm("gymnasium", FEEDFORWARD | SEA | {"epsilon_steps": 100_000, "batch_size": 128}, seeds=UNSEEN),
    }
}
"""Deep sea of 20 rows, of another mapping of the actions for each seed. DQN's epsilon falls from 1 to .02."""
SEA_10: dict[str, Any] = FEEDFORWARD | {
    "env": "learner_tasks:DeepSea10x{seed}-v0", "steps": 30_000, "warmup_steps": 1_000, "target_tau": 0.0,
    "target_every": 500, "gamma": 0.99, "epsilon_start": 0.1, "epsilon_end": 0.1, "epsilon_steps": 0,
    "evaluate_every": 2_000,
}  # fmt: skip
DEEP_SEA["deep-sea-10"] = {
    "dqn": Arm("gymnasium", SEA_10, seeds=UNSEEN[:3]),
    "dqn rnd": Arm("gymnasium", SEA_10 | {"novelty": "rnd"}, seeds=UNSEEN[:3]),
}
"""Ten rows, whose treasure random play finds once in a thousand episodes: DQN with and without rewards for novelty."""
SBX = "sbx "
"""Prefix of the names of SBX's agents."""
START = {"learning_starts": 5_000}
DROPOUT = {"gradient_steps": 20, "policy_delay": 20, "policy_kwargs": {"dropout_rate": 0.01, "layer_norm": True}}
ROBOT_PEERS: dict[str, dict[str, Any]] = {
    SBX + "sac": {"library": "sbx", "algorithm": "SAC", "settings": START},
    SBX + "tqc": {"library": "sbx", "algorithm": "TQC", "settings": START},
    SBX + "crossq": {"library": "sbx", "algorithm": "CrossQ", "settings": START},
    SBX + "droq": {"library": "sbx", "algorithm": "SAC", "settings": START | DROPOUT},
    SBX + "simba": {
        "library": "sbx", "algorithm": "SAC", "policy": "SimbaPolicy", "settings": START,
        "normalize": {"norm_reward": False},
    },
    PEER + "sac": {"library": "sb3", "algorithm": "SAC", "settings": START},
    PEER + "td3": {"library": "sb3", "algorithm": "TD3", "settings": START, "action_noise": 0.1},
}  # fmt: skip
"""Agents of other libraries with their own defaults, and the first random steps of recipe ``sac``."""
OUR_ROBOTS: dict[str, tuple[str, dict[str, Any]]] = {
    "sac": ("sac", {}),
    "sac normalized": ("sac", {"layer_norm": True, "normalize_obs": True}),
    "sac utd 2": ("sac", {"layer_norm": True, "normalize_obs": True, "utd": 2.0}),
    "simba": ("simba", {}),
    "tqc": ("tqc", {}),
    "crossq": ("crossq", {}),
    "td3": ("td3", {}),
}
"""Our agents: recipe, and settings that differ from it."""
ROBOTS = {
    f"{env}-100k": {
        agent: Arm(
            recipe,
            {"env": f"{env}-v5", "steps": 100_000, "evaluate_every": 0} | changes,
            epsilon=0.0,
            seeds=(201, 202, 203, 204, 205),
            peer=peer,
        )
        for agent, recipe, changes, peer in (
            *((agent, *one, None) for agent, one in OUR_ROBOTS.items()),
            *((agent, "sac", {}, peer) for agent, peer in ROBOT_PEERS.items()),
        )
    }
    for env in ("HalfCheetah", "Hopper", "Walker2d", "Ant", "Humanoid")
}
"""MuJoCo's robots at 100,000 steps, a quarter of an hour to an hour of one core each."""

NORMALIZED: dict[str, Any] = {}
SDE = {"use_sde": True, "policy_kwargs": {"log_std_init": -2, "ortho_init": False}}
ROBUST_A2C = {
    "ent_coef": 0.0, "max_grad_norm": 0.5, "n_steps": 8, "gae_lambda": 0.9, "vf_coef": 0.4, "gamma": 0.99,
    "normalize_advantage": False, **SDE,
}  # fmt: skip
ZOO: dict[tuple[str, str], tuple[int, dict[str, Any] | None, dict[str, Any]]] = {
    ("pendulum", "ppo"): (4, None, {
        "n_steps": 1024, "gae_lambda": 0.95, "gamma": 0.9, "n_epochs": 10, "ent_coef": 0.0, "learning_rate": 1e-3,
        "clip_range": 0.2, "use_sde": True, "sde_sample_freq": 4,
    }),
    ("acrobot", "ppo"): (16, NORMALIZED, {
        "n_steps": 256, "gae_lambda": 0.94, "gamma": 0.99, "n_epochs": 4, "ent_coef": 0.0,
    }),
    ("lunarlander", "ppo"): (16, None, {
        "n_steps": 1024, "batch_size": 64, "gae_lambda": 0.98, "gamma": 0.999, "n_epochs": 4, "ent_coef": 0.01,
    }),
    ("bipedalwalker", "ppo"): (32, NORMALIZED, {
        "n_steps": 2048, "batch_size": 64, "gae_lambda": 0.95, "gamma": 0.999, "n_epochs": 10, "ent_coef": 0.0,
        "learning_rate": 3e-4, "clip_range": 0.18,
    }),
    ("acrobot", "a2c"): (16, NORMALIZED, {"ent_coef": 0.0}),
    ("lunarlander", "a2c"): (8, None, {
        "gamma": 0.995, "n_steps": 5, "learning_rate": "lin_0.00083", "ent_coef": 1e-5,
    }),
    ("pendulum", "a2c"): (8, NORMALIZED, ROBUST_A2C | {"learning_rate": "lin_0.0007"}),
    ("bipedalwalker", "a2c"): (16, NORMALIZED, ROBUST_A2C | {"learning_rate": "lin_0.00096"}),
}  # fmt: skip
"""Environments, arguments of VecNormalize, and settings of Stable-Baselines3's zoo (hyperparams/ppo.yml, a2c.yml)."""
CLASSIC: dict[str, dict[str, Arm]] = {}
for (_env, _agent), (_lanes, _normalize, _settings) in ZOO.items():
    _peer = {
        "library": "sb3", "algorithm": _agent.upper(), "num_envs": _lanes, "normalize": _normalize,
        "settings": _settings,
    }  # fmt: skip
    CLASSIC.setdefault(f"classic-{_env}", {}).update(
        {
            _agent: Arm(f"{_env}-{_agent}", FIXED, epsilon=0.0, seeds=(201, 202, 203, 204, 205)),
            PEER + _agent: Arm(f"{_env}-{_agent}", FIXED, seeds=(201, 202, 203, 204, 205), peer=_peer),
        }
    )
DEFAULTS = {
    f"defaults-{env}-{agent}": {
        who + agent: Arm(
            agent,
            {"env": env, "steps": steps, "threads": 1, "evaluate_every": 0},
            epsilon=0.0,
            seeds=(101, 102),
            peer={"library": "sb3", "algorithm": agent.upper()} if who else None,
            fitted=True,
        )
        for who in ("", PEER)
    }
    for env, agent, steps in (
        ("CartPole-v1", "dqn", 20_000),
        ("CartPole-v1", "ppo", 50_000),
        ("Acrobot-v1", "dqn", 30_000),
        ("LunarLander-v3", "dqn", 50_000),
        ("Pendulum-v1", "sac", 5_000),
    )
}
"""Short runs without any setting, beside Stable-Baselines3's own defaults."""
D3RLPY = "d3rlpy "
"""Prefix of the names of d3rlpy's agents."""
LAYERS = {"hidden_units": [256, 256, 256], "use_layer_norm": True}
OFFLINE_PEERS: dict[str, dict[str, Any]] = {
    "bc": {"algorithm": "BC", "settings": {"batch_size": 256}},
    "td3bc": {"algorithm": "TD3PlusBC", "standardize": True, "settings": {}},
    "iql": {"algorithm": "IQL", "return_scale": 1000.0, "settings": {}},
    "rebrac": {"algorithm": "ReBRAC", "settings": {}, "critic": LAYERS, "actor": LAYERS | {"use_layer_norm": False}},
}
"""d3rlpy's learners: its own defaults and, where these are not the papers', the papers' scaling and networks."""
UPDATES = 25_000
OFFLINE = {
    f"offline-{data}": {
        "data": Arm("data", {"env": f"{data.partition('-')[0]}-v5"}, seeds=(0,), data=data),
        **{
            who + agent: Arm(
                agent,
                {"env": f"{data.partition('-')[0]}-v5", "steps": UPDATES, "evaluate_every": 0, "threads": 1},
                epsilon=0.0,
                seeds=(201, 202, 203),
                peer=None if peer is None else {"library": "d3rlpy", **peer},
                data=data,
            )
            for who, agents in (
                ("", dict.fromkeys(("bc", "td3bc", "iql", "rebrac", "calql"))), (D3RLPY, OFFLINE_PEERS),
            )
            for agent, peer in agents.items()
        },
    }
    for data in (f"{env}-{quality}" for env in ENVS for quality in QUALITIES)
}  # fmt: skip
"""Offline learners of sets that our own SAC made, as D4RL's, after as many updates each."""
GROUPS = {
    "minatar": [*MINATAR],
    "robots": [*ROBOTS],
    "classic": [*CLASSIC],
    "defaults": [*DEFAULTS],
    "offline": [*OFFLINE],
}
"""Tasks by the name that stands for all of them."""
ASKED_FOR = (
    OF_OTHERS | ATARI | LUNARLANDER | ON_POLICY | TEAMS | MUJOCO | ROBOTS | CLASSIC | DEFAULTS | OFFLINE | DEEP_SEA
)
"""Tasks that are made where they are asked for."""
TASKS |= MINATAR | ASKED_FOR
