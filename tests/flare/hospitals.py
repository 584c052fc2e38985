"""Three hospitals, a university and two people; and what they run."""

from __future__ import annotations

from cupola.analysis.plan_file import load

SITES = ["hospital-a", "hospital-b", "hospital-c"]
#: By how many seconds a party's clock is wrong, in all tests.
CLOCKS = {"hospital-b": 5 * 3600, "hospital-c": -7 * 3600, "university": 86400}
LEAD, MEMBER = "alice@hospital-a.org", "bob@hospital-b.org"

BASE = {
    "rounds": 3,
    "dtype": "float64",
    "data": {"name": "digits", "partition": {"kind": "iid", "sites": 3, "test": 0.2}},
    "model": {"name": "mlp", "hidden": [8]},
    "local": {"epochs": 1, "batch_size": 32, "lr": 0.1},
    "engine": {"timeout": 120, "workers": 1},
}
PLANS = {
    "plain": {},
    "hidden": {
        "sum": {"kind": "masked"},
        "personalise": {"methods": ["pfa", "finetune"], "rounds": 1, "groups": 1, "layers": [0]},
    },
    "private": {
        "rounds": 1,
        "model": {"name": "linear"},
        "privacy": {
            "mechanism": "dp-sgd",
            "noise_multiplier": 1000.0,
            "clip": 0.001,
            "delta": 1e-5,
        },
    },
    "killed": {"rounds": 14, "sum": {"kind": "masked"}, "engine": {"timeout": 8}},
    "faulty": {
        "rounds": 5000,
        "model": {"name": "linear"},
        "evaluation": {"every": 5000},
        "engine": {"timeout": 6, "quorum": 0.5, "workers": 1},
    },
    "code": {},
}


def plan(name):
    return load({**BASE, "name": name, **PLANS[name]})
