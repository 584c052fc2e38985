"""What a sweep tries next, by Optuna's samplers: random, and the tree-structured Parzen estimator.

Bergstra, Bardenet, Bengio, Kegl: Algorithms for hyper-parameter optimization (2011); with several
objectives Ozaki et al.: Multiobjective tree-structured Parzen estimator (2022).

A study is built anew for every trial, from what was tried before, and draws with a seed of its own.
So a trial follows from the sweep and the trials before it, and a resume needs no database.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cupola.base.randomness import generator
from cupola.errors import PlanError
from cupola.sweep.search_space import Over, grid

Tried = tuple[Mapping[str, Any], Sequence[float] | None]  # settings, and values if it has any
_ATTEMPTS = 100  # at a setting that was not tried before


def optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise PlanError(
            "--strategy random and tpe, and ranges, need Optuna, which is not installed: "
            "pip install 'cupola[sweep]'"
        ) from None
    return optuna


def draw(
    over: Sequence[Over],
    strategy: str,
    seed: int,
    tried: Sequence[Tried],
    lower: Sequence[bool] = (False,),
    startup: int = 10,
) -> dict[str, Any] | None:
    """The next setting, different from all others; None if there are no more. lower: for each value
    whether less is better. startup: trials that TPE draws at random before it learns from them.

    A trial without values (it diverged, say) counts as worse than all that have some.
    """
    library = optuna()
    library.logging.set_verbosity(library.logging.ERROR)
    space = {axis.key: _distribution(axis) for axis in over}
    study = library.create_study(directions=["minimize" if low else "maximize" for low in lower])
    for settings, values in tried:
        state = library.trial.TrialState.PRUNED if values is None else None
        study.add_trial(
            library.trial.create_trial(
                state=state or library.trial.TrialState.COMPLETE,
                params={axis.key: _inward(axis, settings[axis.key]) for axis in over},
                distributions=space,
                values=values,
            )
        )
    known = {repr(dict(settings)) for settings, _ in tried}
    ranges = any(axis.is_range for axis in over)
    left = [] if ranges else [one for one in grid(over) if repr(one) not in known]
    if not (ranges or left):
        return None
    for attempt in range(_ATTEMPTS):
        own = int(generator(seed, "sweep", len(tried), attempt).integers(2**31))
        learns = strategy == "tpe" and attempt < _ATTEMPTS // 2  # it may insist on its favourite
        study.sampler = (
            library.samplers.TPESampler(seed=own, n_startup_trials=startup)
            if learns
            else library.samplers.RandomSampler(seed=own)
        )
        params = study.ask(space).params
        chosen = {axis.key: _outward(axis, params[axis.key]) for axis in over}
        if repr(chosen) not in known:
            return chosen
    return next(iter(left), None)


def _distribution(axis: Over) -> Any:
    """Values by their place: they may be lists or tables."""
    kinds = optuna().distributions
    if not axis.is_range:
        return kinds.CategoricalDistribution(tuple(range(len(axis.values))))
    if axis.whole:
        return kinds.IntDistribution(int(axis.low), int(axis.high))
    return kinds.FloatDistribution(axis.low, axis.high, log=axis.log)


def _inward(axis: Over, value: Any) -> Any:
    if axis.is_range:
        return value
    return [repr(one) for one in axis.values].index(repr(value))


def _outward(axis: Over, param: Any) -> Any:
    return axis.typed(param) if axis.is_range else axis.values[param]
