"""Base of agents with networks: device and precision, optimizer and learning rate, averages, and saving.

A subclass of ``NetworkAgent`` makes its networks, names those that act, are trained and are saved, and computes losses.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sharpwave.agents.protocol import Agent, Obs, Rows, Spaces
from sharpwave.agents.replay import LEARNING, linear
from sharpwave.configuration import check, expect, setting
from sharpwave.extras import Tensor, nn, torch

if TYPE_CHECKING:
    from gymnasium.spaces import Space

PRECISIONS = ("auto", "float32", "bfloat16")


@dataclass(frozen=True)
class LearningRateSettings:
    """Settings of a learning rate that may fall."""

    lr: float = setting(1e-3, "learning rate of Adam", LEARNING, flag="--learning-rate", above=0)
    lr_end: float | None = setting(
        None, "final learning rate; empty: constant", LEARNING, flag="--learning-rate-end", above=0
    )
    lr_steps: int = setting(
        0, "steps from learning-rate to learning-rate-end", LEARNING, flag="--learning-rate-steps", at_least=0
    )

    def __post_init__(self) -> None:
        check(self)
        expect(self, "lr_steps", self.lr_end is None or self.lr_steps > 0, "at least 1 with --learning-rate-end")

    def unused(self) -> Iterator[tuple[str, str]]:
        if self.lr_end is None:
            yield "lr_steps", "--learning-rate-end"


class NetworkAgent(Agent):
    """Base of agents whose networks learn by gradients.

    Attributes:
        inputs: module that maps stored observations to the networks' inputs; made by the subclass.
        EXPLORES: whether it draws from a generator of its own, which is then part of its state.
        COUNTS: names of its attributes that count; they are part of its state.
    """

    EXPLORES = True
    COUNTS: tuple[str, ...] = ()
    inputs: Any

    def __init__(self, spaces: Spaces, settings: Any = None, device: torch.device | str = "cpu", seed: Any = 0) -> None:
        self.spaces, self.settings = spaces, settings or self.Settings()
        self.device = pick_device(device)
        precision = getattr(self.settings, "precision", "float32")
        needless = precision == "auto" and not self.rounding_pays
        self._precision = pick_precision("float32" if needless else precision, self.device)
        self._rng = np.random.default_rng(seed)
        self._followers: dict[str, nn.Module] = {}
        self.build()

    def build(self) -> None:
        """Make inputs and networks; called once, by the constructor."""

    @property
    def precision(self) -> str:
        return self._precision

    @property
    def rounding_pays(self) -> bool:
        """Whether precision "auto" may be bfloat16 over these observations, whose updates are then faster."""
        return True

    # networks

    def make_inputs(self, standardize: bool = False) -> nn.Module:
        """Make fresh inputs for the observations, as :func:`~sharpwave.agents.inputs.inputs_for`."""
        from sharpwave.agents.inputs import inputs_for

        return inputs_for(self.spaces.seen, self.settings.network != "mlp", standardize).to(self.device)

    def running_inputs(self) -> nn.Module:
        """Make fresh inputs that ``measure`` keeps at mean 0 and deviation 1; images are left to other inputs.

        Raises:
            ValueError: no observation is a vector of numbers.
        """
        from sharpwave.agents.inputs import RunningInputs, has, inputs_for

        made = inputs_for(self.spaces.seen, self.settings.network != "mlp", True, RunningInputs).to(self.device)
        expect(self.settings, "normalize_obs", has(made, RunningInputs), "False: no observation is a vector of numbers")
        return made

    def measure(self, obs: Any) -> None:
        """Let the inputs of ``running_inputs``, if they are that, measure observations [N, ...]."""
        from sharpwave.agents.inputs import RunningInputs, standardize

        standardize(self.inputs, obs, RunningInputs)

    def make_torso(self, units: int, normalized: bool = False) -> Any:
        """Make a fresh torso for the observations, as :func:`~sharpwave.agents.networks.torso_for`."""
        from sharpwave.agents.networks import torso_for

        return torso_for(self.spaces.seen, self.settings.network, units, normalized)

    @abstractmethod
    def trained(self) -> dict[str, nn.Module]:
        """Return the modules that the optimizer trains, by the names they are saved under."""

    @abstractmethod
    def acting(self, explore: bool) -> nn.Module:
        """Return the network that acts: the one that explores, or the one that is evaluated and saved as the policy."""

    def acting_modules(self, explore: bool) -> dict[str, nn.Module]:
        """Return all modules needed to act, by the names they are saved under."""
        return {"inputs": self.inputs, "policy": self.acting(explore)}

    def modules(self) -> dict[str, nn.Module]:
        """Return all modules that are saved with the agent's state, by name."""
        return {"inputs": self.inputs, **self.trained(), **self._followers}

    def follower(self, name: str, network: nn.Module, source: nn.Module) -> Any:
        """Make ``network`` a copy of ``source`` that learns no gradients, such as a target; it is saved as ``name``.

        The agent moves it by ``move_towards``.
        """
        self._followers[name] = network.to(self.device).requires_grad_(False)
        move_towards(network, source, 1.0)
        return network

    def autocast(self) -> AbstractContextManager[Any]:
        """Let networks compute in the settings' precision while inside."""
        return (
            torch.autocast(self.device.type, dtype=torch.bfloat16) if self._precision == "bfloat16" else nullcontext()
        )

    # act

    @property
    def inference_space(self) -> Space[Any] | None:
        return self.spaces.observation

    def infer(self, obs: Obs, *memory: Rows) -> tuple[Rows, ...]:
        """Return the predictions of the network that explores, float32 [N, ...], those of illegal actions included."""
        with torch.inference_mode():
            return (self.predicted(to_tensors(obs, self.device)).cpu().numpy(),)

    def predicted(self, obs: Any) -> Tensor:
        """Return what ``infer`` does, as a tensor, of a tensor or a dict of tensors."""
        predicted: Tensor = self.acting(True)(self.inputs(obs))
        return predicted

    # export: ``act`` without exploring, as operations on tensors that other programs can run

    @property
    def remembers(self) -> bool:
        return bool(self.memory())

    def memory(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of what each lane carries from step to step, by name: zeros where an episode begins."""
        return {}

    def decide(self, obs: Any, memory: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Choose the actions that ``act`` chooses without exploring.

        Args:
            obs: [N, ...], a tensor or a dict of tensors.  memory: float32 [N, ...], of ``memory``.
        Returns:
            actions for the environment, [N, ...]; the memory after them, as far as it is known before the outcome.
        Raises:
            NotImplementedError: acting takes more than operations on tensors.
        """
        return self.best(self.predicted(obs), obs), {}

    def best(self, predicted: Tensor, obs: Any) -> Tensor:
        """Return the actions, [N, ...], that predictions for observations [N, ...] favor.

        Raises: NotImplementedError: as ``decide``.
        """
        raise NotImplementedError(f"{self.settings.kind} has no form for other programs: it does not define best()")

    # learn

    @cached_property
    def optimizer(self) -> torch.optim.Optimizer:
        """Optimizer of ``trained``, made on first use: actors need none."""
        return self.make_optimizer([one for module in self.trained().values() for one in module.parameters()])

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Make the optimizer: Adam."""
        return torch.optim.Adam(parameters, lr=self.settings.lr, eps=self.settings.adam_eps, fused=True)

    def minimize(self, loss: Tensor, *clipped: Iterable[nn.Parameter]) -> None:
        """Make one step of the optimizer along the gradient of ``loss``.

        Args:
            clipped: parameters whose gradients are clipped to ``max_grad_norm``, those of each group as one vector.
        """
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
        loss.backward()
        if clipped and self.settings.max_grad_norm > 0:
            for parameters in clipped:
                clip([*parameters], self.settings.max_grad_norm)
        self.optimizer.step()

    def learning_rate(self, step: int) -> float:
        start, end = self.settings.lr, self.settings.lr_end
        rate: float = start if end is None else linear(step, start, end, self.settings.lr_steps)
        return rate

    def replay(self) -> Any:
        return self.settings.replay

    def schedules(self, step: int) -> dict[str, float]:
        falls = isinstance(self.settings, LearningRateSettings)
        rate, beta = {"learning_rate": self.learning_rate(step)} if falls else {}, self.settings.replay.beta(step)
        return rate if beta is None else {**rate, "beta": beta}

    # save

    def policy_tensors(self, explore: bool = False) -> dict[str, Tensor]:
        tensors = tensors_of(self.acting_modules(explore))
        return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}

    def load_policy(self, tensors: Mapping[str, Tensor]) -> None:
        load_tensors(self.acting_modules(True), tensors)

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = {"weights": tensors_of(self.modules()), "optimizer": optimizer_tensors(self.optimizer)}
        if self.EXPLORES:
            state["exploration"] = self._rng.bit_generator.state
        return state | {name: getattr(self, name) for name in self.COUNTS}

    def load(self, state: Mapping[str, Any]) -> None:
        load_tensors(self.modules(), state["weights"])
        load_optimizer(self.optimizer, state["optimizer"])
        if self.EXPLORES:
            self._rng.bit_generator.state = state["exploration"]
        for name in self.COUNTS:
            setattr(self, name, int(state[name]))


def pick_device(name: torch.device | str) -> torch.device:
    """Resolve "auto" to CUDA where there is a device, else to the CPU; any other name as torch knows it.

    Raises:
        ValueError: an unknown name, or CUDA on a machine without it.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device: got {name!r}, expected 'auto', 'cpu', 'cuda' or 'cuda:0'") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device: got {name!r}, but torch sees no CUDA device here; use 'auto' or 'cpu'")
    return device


def pick_precision(name: str, device: torch.device) -> str:
    """Resolve "auto" to bfloat16 on a CPU that has matrix instructions for it (AMX, AVX512-BF16), else to float32."""
    if name != "auto":
        return name
    checks = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
    native = any(getattr(torch.cpu, check, lambda: False)() for check in checks)
    return "bfloat16" if device.type == "cpu" and native else "float32"


def move_towards(follower: nn.Module, source: nn.Module, share: float) -> None:
    """Move ``follower`` towards ``source`` in place: follower <- follower + share * (source - follower).

    A share of 1 copies. Buffers are averaged as parameters are, so that running statistics match the averaged weights;
    integer buffers, which have no mean, are copied.

    Args:
        source: a network of the same shape.  share: from 0 to 1.
    """
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"share: got {share}, expected from 0 to 1")
    pairs = [
        *zip(follower.parameters(), source.parameters(), strict=True),
        *zip(follower.buffers(), source.buffers(), strict=True),
    ]
    copied = [pair for pair in pairs if share == 1.0 or not pair[0].is_floating_point()]
    mixed = [pair for pair in pairs if share != 1.0 and pair[0].is_floating_point()]
    with torch.no_grad():
        if copied:
            torch._foreach_copy_([own for own, _ in copied], [other for _, other in copied])
        if mixed:
            torch._foreach_lerp_([own for own, _ in mixed], [other for _, other in mixed], share)


def clip(parameters: list[nn.Parameter], limit: float) -> None:
    """Scale the gradients of ``parameters`` as one vector, in place, so that its norm is at most ``limit``.

    It computes what ``torch.nn.utils.clip_grad_norm_`` does, in a third of the time for small networks.
    """
    gradients = [one.grad for one in parameters if one.grad is not None]
    norm = torch.stack(torch._foreach_norm(gradients)).norm()
    torch._foreach_mul_(gradients, (limit / (norm + 1e-6)).clamp(max=1.0))


def to_tensors(obs: object, device: torch.device) -> object:
    """Copy an array, or a dict of arrays, to tensors on ``device``."""
    if isinstance(obs, dict):
        return {name: to_tensors(one, device) for name, one in obs.items()}
    array: npt.NDArray[np.generic] = np.ascontiguousarray(obs)
    return torch.from_numpy(array).to(device)


def tensors_of(modules: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """Return parameters and buffers by "<module's name>.<tensor's name>"; not copied."""
    return {
        f"{part}.{name}": tensor for part, module in modules.items() for name, tensor in module.state_dict().items()
    }


def load_tensors(modules: Mapping[str, nn.Module], tensors: Mapping[str, Tensor]) -> None:
    """Load tensors of ``tensors_of``; names of other modules are ignored.

    Raises:
        ValueError: the names or shapes are those of another network.
    """
    for part, module in modules.items():
        own = {name.removeprefix(f"{part}."): one for name, one in tensors.items() if name.startswith(f"{part}.")}
        try:
            module.load_state_dict(own)
        except RuntimeError as error:
            raise ValueError(f"weights do not fit the agent's {part} module: {error}") from error


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return an optimizer's moments and step counts by "<parameter's index>.<name>"."""
    state = optimizer.state_dict()["state"]
    return {f"{index}.{name}": tensor for index, entry in state.items() for name, tensor in entry.items()}


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Load tensors of ``optimizer_tensors``.

    Raises:
        ValueError: they belong to other parameters.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        index, _, name = key.partition(".")
        if not index.isdecimal() or int(index) >= len(parameters):
            raise ValueError(f"the optimizer's state has {key!r}, expected numbers of {len(parameters)} parameters")
        parameter = parameters[int(index)]
        # In the parameter's memory layout (channels last): Adam's fused kernel pairs elements by position in memory.
        copy = torch.empty_like(parameter).copy_(tensor) if tensor.shape == parameter.shape else tensor.clone()
        state.setdefault(int(index), {})[name] = copy
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
