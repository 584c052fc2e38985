"""The model that a training run left behind."""

from __future__ import annotations

from safetensors.torch import load_file
from torch import Tensor, nn

from cupola.analysis.run_folder import Run
from cupola.base.chain import read_result
from cupola.errors import CupolaError
from cupola.nn.adapters import settle
from cupola.nn.reprogram import INSTALLED
from cupola.training.adapters import base_name
from cupola.training.build import federated_data, problem
from cupola.training.frozen import FrozenPart


def load_model(run: Run) -> nn.Module:
    """The trained model, on the CPU, in evaluation mode."""
    path = run.folder / "model.safetensors"
    if not path.exists():
        raise CupolaError(f"{run.folder} has no model yet; finish it with `{run.resume}`")
    read_result(run.folder, whole=True)
    made = problem(run.plan, federated_data(run.plan))
    module = settle(made.build().to(made.dtype))
    source, base = run.result.get("source"), base_name(run.plan)
    if source and source != FrozenPart(module).installed:
        what = f"source model '{run.plan.model.options.get('source')}'"
        if base is not None:
            what = f"adapter's base '{base}'"
        raise CupolaError(
            f"the weights of the {what} are not "
            f"those that {run.folder} was trained with; put that file back in its place"
        )
    _fill(run, module, load_file(path))
    return module.eval()


def _fill(run: Run, module: nn.Module, saved: dict[str, Tensor]) -> None:
    """Put all saved values into a module. What it freezes itself must be among them, or it
    would keep what its code makes today; a source model's weights were compared before."""
    name, path = run.plan.model.name, run.folder / "model.safetensors"
    here = {**dict(module.named_buffers()), **module.state_dict()}
    for n in sorted(saved.keys() & here.keys()):
        if saved[n].shape != here[n].shape:
            raise CupolaError(
                f"{path} does not fit the model '{name}': '{n}' is {list(saved[n].shape)} "
                f"there, {list(here[n].shape)} here; open it with the code that made it"
            )
    missing, left = module.load_state_dict(saved, strict=False)
    for n in here.keys() & left:  # buffers that are no part of the state
        here[n].copy_(saved[n])
    strange = [n for n in left if n not in here]
    needed = dict(module.named_parameters())
    lost = [n for n in missing if n in needed and n not in getattr(module, INSTALLED, ())]
    if strange or any(needed[n].requires_grad for n in lost):
        raise CupolaError(
            f"{path} does not fit the model '{name}' of this version of cupola "
            f"('{[*strange, *lost][0]}'); open it with the version that made it"
        )
    if lost:
        raise CupolaError(
            f"{path} lacks '{lost[0]}', which '{name}' freezes itself: an earlier version of "
            "cupola left it out, and nothing tells whether the model's code makes the same "
            "values today. Run the plan again, or load the file into a model that you trust"
        )
