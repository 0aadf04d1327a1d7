"""TorchRL's DQN on CartPole with a compressed replay buffer: pip install '.[torchrl]' gymnasium.

    python examples/torchrl_dqn.py [--frames 40000] [--seed 0]

The buffer is the only line that differs from a program with TorchRL's own. Returns over five steps and priorities are
its settings; it learns CartPole in about a minute.
"""

import argparse

import torch
from tensordict.nn import TensorDictSequential
from torchrl.collectors import Collector
from torchrl.envs import GymEnv, RewardSum, SerialEnv, TransformedEnv
from torchrl.modules import MLP, EGreedyModule, QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate

from sharpwave.integrations.torchrl import ReplayBuffer

LANES, FRAMES_PER_BATCH, UPDATES, BATCH_SIZE, GAMMA = 4, 64, 16, 128, 0.99
WARMUP_FRAMES, EPSILON_FRAMES, EPSILON_END = 1_024, 8_000, 0.02


def make_env() -> TransformedEnv:
    """Make an environment that sums its rewards."""
    return TransformedEnv(GymEnv("CartPole-v1"), RewardSum())


def main() -> None:
    """Train until the last 20 episodes scored 450 on average."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=40_000, help="environment steps at most")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)

    env = SerialEnv(LANES, make_env)
    env.set_seed(arguments.seed)
    action_spec = make_env().action_spec
    network = MLP(in_features=4, out_features=2, num_cells=[128, 128], activation_class=torch.nn.ReLU)
    actor = QValueActor(network, in_keys=["observation"], spec=action_spec)
    explore = EGreedyModule(action_spec, eps_init=1.0, eps_end=EPSILON_END, annealing_num_steps=EPSILON_FRAMES)
    loss_of = DQNLoss(actor, action_space="one-hot", delay_value=True, double_dqn=True)
    loss_of.make_value_estimator(gamma=GAMMA)
    target = SoftUpdate(loss_of, tau=0.01)
    optimizer = torch.optim.Adam(loss_of.parameters(), 1e-3)

    buffer = ReplayBuffer(50_000, batch_size=BATCH_SIZE, n_step=5, gamma=GAMMA, alpha=0.6, beta=0.4)
    collector = Collector(
        env,
        TensorDictSequential(actor, explore),
        frames_per_batch=FRAMES_PER_BATCH,
        total_frames=arguments.frames,
        init_random_frames=WARMUP_FRAMES,
        auto_register_policy_transforms=False,
    )
    frames, scores = 0, []
    for data in collector:
        frames += data.numel()
        scores += data["next", "episode_reward"][data["next", "done"]].tolist()
        buffer.extend(data)
        explore.step(data.numel())
        if frames < WARMUP_FRAMES:
            continue
        for _ in range(UPDATES):
            sample = buffer.sample()
            loss = loss_of(sample)["loss"]
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(loss_of.parameters(), 10.0)
            optimizer.step()
            target.step()
            buffer.update_tensordict_priority(sample)
        if frames % 2_048 < FRAMES_PER_BATCH and scores:
            mean = sum(scores[-20:]) / len(scores[-20:])
            print(f"{frames:6,} frames: {mean:5.1f} in 20 episodes, epsilon {float(explore.eps):.2f}", flush=True)
            if mean >= 450:
                break
    collector.shutdown()
    stats = buffer.transitions.store.stats()
    print(f"{stats['steps']:,} transitions, {stats['encoded_bytes_per_step']:.0f} bytes each")


if __name__ == "__main__":
    main()
