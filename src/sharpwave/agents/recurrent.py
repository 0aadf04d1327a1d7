"""Recurrent networks: torso, recurrent core and head, stepped while acting and unrolled over windows while learning."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence


class RecurrentQNetwork(nn.Module):
    """Torso, recurrent core and Q-head. The core also sees the previous action and reward.

    Args:
        torso: outputs of the agent's inputs -> features.
        core: "lstm" or "gru". ``units``: of it.
        beside: length of the vector that goes into the core beside the features.
        head: core's output -> Q [B, A].

    Attributes:
        state_size: length of the recurrent state of a lane as one vector.
    """

    def __init__(self, torso: Any, core: str, units: int, beside: int, head: nn.Module) -> None:
        super().__init__()
        kinds: dict[str, type[nn.LSTM] | type[nn.GRU]] = {"lstm": nn.LSTM, "gru": nn.GRU}
        self.torso, self.head = torso, head
        self.core = kinds[core](torso.features + beside, units, batch_first=True)
        self._parts = 2 if core == "lstm" else 1
        self.state_size = self._parts * units
        if core == "lstm":  # gates: input, forget, cell, output. With a forget gate that is open at first, the core
            with torch.no_grad():  # remembers over tens of steps before it has learned to (Jozefowicz et al. 2015)
                self.core.get_parameter("bias_ih_l0")[units : 2 * units] = 1.0
                self.core.get_parameter("bias_hh_l0")[units : 2 * units] = 0.0

    def step(self, inputs: Any, beside: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Compute one step of B lanes.

        Args:
            inputs: of the agent's inputs. ``beside``: float [B, n].
            state: float [B, state_size], before the step.
        Returns:
            Q, float32 [B, A]; the state after the step.
        """
        out, after = self.core(torch.cat([self.torso(inputs), beside], dim=1).unsqueeze(1), self._parted(state))
        q: Tensor = self.head(out.squeeze(1))
        return q, self._joined(after)

    def unroll(self, inputs: Any, beside: Tensor, state: Tensor, begin: Tensor, burn_in: int) -> Tensor:
        """Compute Q of a window's steps from column ``burn_in`` on; those before it only refresh the state.

        The library's core goes over all columns in one call; no gradient flows through the burn-in.

        Args:
            inputs: of the agent's inputs, [B * T, ...].
            beside: float [B, T, n].
            state: float [B, state_size], before each window's first step.
            begin: int64 [B], the column of that, at most ``burn_in``: columns before it are padding.
        Returns:
            float32 [B, T - burn_in, A].
        """
        size, columns, _ = beside.shape
        x = torch.cat([self.torso(inputs).reshape(size, columns, -1), beside], dim=2)
        if burn_in:
            with torch.no_grad():
                state = self._refreshed(x[:, :burn_in].detach(), state, begin)
        out, _ = self.core(x[:, burn_in:], self._parted(state))
        q: Tensor = self.head(out.reshape(size * (columns - burn_in), -1))
        return q.reshape(size, columns - burn_in, -1)

    def _refreshed(self, x: Tensor, state: Tensor, begin: Tensor) -> Tensor:
        """Return the state after the columns of ``x`` [B, T, n] from ``begin`` on."""
        columns = x.shape[1]
        some = (begin < columns).nonzero().squeeze(1)
        if not len(some):
            return state
        begins = begin[some]
        # Each window's steps go to the front, and the core stops after its last one.
        places = (torch.arange(columns, device=x.device) + begins[:, None]).clamp(max=columns - 1)
        fronted = x[some].gather(1, places[:, :, None].expand(-1, -1, x.shape[2]))
        packed = pack_padded_sequence(fronted, (columns - begins).cpu(), batch_first=True, enforce_sorted=False)
        _, after = self.core(packed, self._parted(state[some]))
        refreshed = state.clone()
        refreshed[some] = self._joined(after)
        return refreshed

    def _parted(self, state: Tensor) -> Any:
        """Split states [B, state_size] as the library's core takes them."""
        parts = tuple(part.contiguous().unsqueeze(0) for part in state.chunk(self._parts, dim=1))
        return parts if self._parts == 2 else parts[0]

    def _joined(self, state: Any) -> Tensor:
        """Undo :meth:`_parted`."""
        return torch.cat([part.squeeze(0) for part in (state if self._parts == 2 else (state,))], dim=1)
