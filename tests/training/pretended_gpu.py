"""A GPU that is not there: tensors that say they are on another device, computed by the CPU.

Its name is torch's `meta`, the one device besides the CPU that a build without CUDA can tell apart.
What a GPU would refuse is refused here: an operation on tensors of two devices, a CPU tensor where
the device's is wanted, `numpy()` of a tensor that was not brought back. What a GPU computes
otherwise (its kernels, their rounding and order) is not seen: that takes a machine that has one.
"""

from collections import Counter
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

GPU = torch.device("meta")
MOVES = {"_to_copy", "copy_", "_copy_from"}
#: A GPU takes the indices of the CPU, and moves them itself.
TAKES_INDICES = {"index", "index_put_", "index_put", "_index_put_impl_"}


class OnDevice(torch.Tensor):
    """Looks like a tensor of the GPU; `held` is what it holds, on the CPU."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held, requires_grad=False):
        how = {"dtype": held.dtype, "device": "meta"}
        with torch.inference_mode(False):  # a view of a parameter there could not be one of these
            like = torch.empty_strided(held.shape, held.stride(), **how)
            made = torch.Tensor._make_subclass(cls, like, requires_grad, dispatch_device=True)
        made.held = held
        return made

    @property
    def device(self):
        return GPU

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        del types
        name = getattr(func, "__name__", "")
        if name == "numpy":
            raise TypeError("can't convert GPU tensor to numpy: use .cpu() first")
        if name == "tolist":
            return args[0].held.tolist()
        if func == torch.Tensor.data.__set__:
            if not isinstance(args[1], OnDevice):
                raise TypeError("a CPU tensor became the data of a parameter there")
            args[0].held = args[1].held
            if args[0].dtype != args[1].dtype:  # what the tensor says of itself changes, too
                with torch._C.DisableTorchFunctionSubclass():
                    func(*args)
            return None
        if func == torch.Tensor.data.__get__:
            return OnDevice(args[0].held)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        del types
        return computed(func, args, kwargs or {})


def computed(func, args, kwargs, told=None):
    """Compute on the CPU what the device would, or refuse it."""
    name = func.overloadpacket.__name__
    if func is torch.ops.prim.device.default:
        return GPU
    leaves = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    there = [t for t in leaves if isinstance(t, OnDevice)]
    here = [t for t in leaves if not isinstance(t, OnDevice) and t.dim()]
    if there and here and name not in MOVES and not (name in TAKES_INDICES and args[0] is there[0]):
        raise RuntimeError(f"{name}: tensors on both devices ({tuple(here[0].shape)})")
    wanted = kwargs.get("device")
    goes = bool(there) if wanted is None else torch.device(wanted).type == GPU.type
    if name == "copy_":
        goes = isinstance(args[0], OnDevice)
    if told is not None and goes:
        told[name] += 1

    def plain(t):
        return t.held if isinstance(t, OnDevice) else t

    own = {k: v for k, v in kwargs.items() if k != "device"}
    if wanted is not None:
        own["device"] = torch.device("cpu")
    made = func(*tree_map(plain, args), **tree_map(plain, own))
    known = {id(t.held): t for t in there}  # what is changed in place stays itself

    def back(t):
        if not isinstance(t, torch.Tensor) or not goes:
            return t
        return known.get(id(t)) or OnDevice(t)

    def same(t):
        return known[id(t)] if id(t) in known else back(t)

    return tree_map(lambda t: same(t) if isinstance(t, torch.Tensor) else t, made)


class _Device(TorchDispatchMode):
    def __init__(self, told):
        super().__init__()
        self.told = told

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        del types
        if func.overloadpacket.__name__ == "to":  # in inference mode it comes as it was called
            with self:
                return func.decompose(*args, **(kwargs or {}))
        return computed(func, args, kwargs or {}, self.told)


@contextmanager
def pretended_gpu(monkeypatch):
    """Plans with device = "cuda" get the pretended one. Gives a count of what it computed."""
    from cupola.training import workspace

    real = workspace.pick_device
    monkeypatch.setattr(
        workspace, "pick_device", lambda n, *a: GPU if n.startswith("cuda") else real(n, *a)
    )
    # Parameters of the CPU are replaced, not filled with what is on the device.
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    told = Counter()
    try:
        with _Device(told):
            yield told
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(before)
