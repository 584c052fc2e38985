"""LSTM, GRU and RNN as batch-first loops over time, equal to torch's own.

torch's fused kernels show neither the gates nor run under `vmap`. Here the products with the input
are one linear map over all steps; those with the state are noted once for all steps, at the place
where the gates' gradients are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cupola.privacy.persample.tape import NotCoveredError, Tape, cell

State = tuple[Tensor, ...]  # (h,), or (h, c) of an LSTM; (n, features) each


@cell(nn.RNN, nn.GRU, nn.LSTM)
def recurrent(layer: nn.RNNBase, tape: Tape, x: Any, hx: Any = None) -> tuple[Tensor, Any]:
    """The forward pass of nn.RNN, nn.GRU or nn.LSTM on x (n, T, d), or (T, n, d)."""
    if not isinstance(x, Tensor) or x.dim() != 3:
        if tape.silent:
            return type(layer).forward(layer, x, hx)
        raise NotCoveredError(f"{type(layer).__name__} on packed or single sequences")
    if not layer.batch_first:
        x = x.transpose(0, 1)
    states = _start(layer, x, hx)
    ends: list[State] = []
    directions = 2 if layer.bidirectional else 1
    for depth in range(layer.num_layers):
        outputs = []
        for direction in range(directions):
            suffix = f"_l{depth}" + ("_reverse" if direction else "")
            inputs = x.flip(1) if direction else x
            run = _scan(layer, tape, suffix, inputs, states[len(ends)])
            outputs.append(run[0].flip(1) if direction else run[0])
            ends.append(run[1])
        x = outputs[0] if directions == 1 else torch.cat(outputs, -1)
        if layer.dropout and depth + 1 < layer.num_layers:
            x = F.dropout(x, layer.dropout, layer.training)
    last = tuple(torch.stack(parts) for parts in zip(*ends))
    return x if layer.batch_first else x.transpose(0, 1), last if len(last) == 2 else last[0]


def _start(layer: nn.RNNBase, x: Tensor, hx: Any) -> list[State]:
    """The first state of every layer and direction."""
    count = layer.num_layers * (2 if layer.bidirectional else 1)
    if hx is not None:
        given = hx if isinstance(hx, tuple) else (hx,)
        return [tuple(part[i] for part in given) for i in range(count)]
    hidden = x.new_zeros(len(x), layer.proj_size or layer.hidden_size)
    if isinstance(layer, nn.LSTM):
        return [(hidden, x.new_zeros(len(x), layer.hidden_size))] * count
    return [(hidden,)] * count


def _scan(
    layer: nn.RNNBase, tape: Tape, suffix: str, x: Tensor, state: State
) -> tuple[Tensor, State]:
    """One layer in one direction over x (n, T, d): outputs (n, T, features) and the last state."""

    def parameter(name: str) -> Any:
        return getattr(layer, name + suffix, None)

    weight, bias = parameter("weight_hh"), parameter("bias_hh")
    given = tape.dense(x, parameter("weight_ih"), parameter("bias_ih"))  # (n, T, gates)
    if not given.requires_grad:  # only the state's weights are trained
        given = given + _place(tape, given)
    befores: list[Tensor] = []
    outputs: list[Tensor] = []
    if isinstance(layer, nn.GRU):
        # The reset gate stands between the state's product and the sum: it needs its own place.
        place = _place(tape, given)
        for t in range(x.shape[1]):
            befores.append(state[0])
            state = (_gru(given[:, t], F.linear(state[0], weight, bias) + place[:, t], state[0]),)
            outputs.append(state[0])
        tape.note(_steps(befores), place, weight, bias)
    elif isinstance(layer, nn.LSTM):
        project = parameter("weight_hr")
        narrow = _place(tape, x.new_zeros(*x.shape[:2], layer.proj_size))
        wide: list[Tensor] = []
        for t in range(x.shape[1]):
            befores.append(state[0])
            h, c = _lstm(given[:, t] + F.linear(state[0], weight, bias), state[1])
            if project is not None:
                wide.append(h)
                h = F.linear(h, project) + narrow[:, t]
            state = (h, c)
            outputs.append(h)
        tape.note(_steps(befores), given, weight, bias)
        if project is not None:
            tape.note(_steps(wide), narrow, project, None)
    else:
        act: Callable[[Tensor], Tensor] = torch.tanh if layer.nonlinearity == "tanh" else torch.relu
        for t in range(x.shape[1]):
            befores.append(state[0])
            state = (act(given[:, t] + F.linear(state[0], weight, bias)),)
            outputs.append(state[0])
        tape.note(_steps(befores), given, weight, bias)
    return _steps(outputs), state


def _place(tape: Tape, like: Tensor) -> Tensor:
    """Zeros to add, (n, T, features), whose gradient is that of what they are added to."""
    zeros = torch.zeros_like(like)
    return zeros if tape.silent else zeros.requires_grad_()


def _steps(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts, 1)


def _lstm(gates: Tensor, c: Tensor) -> State:
    i, f, g, o = gates.chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _gru(given: Tensor, own: Tensor, h: Tensor) -> Tensor:
    r, z, n = given.chunk(3, -1)
    own_r, own_z, own_n = own.chunk(3, -1)
    update = (z + own_z).sigmoid()
    new = (n + (r + own_r).sigmoid() * own_n).tanh()
    return new + update * (h - new)
