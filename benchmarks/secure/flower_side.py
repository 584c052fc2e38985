"""Flower's SecAgg+ on vectors from a file: one JSON line with times of its parts and its error.

Runs in Flower's environment. Every stage of the sites is Flower's own function; the coordinator's
arithmetic follows its workflow, without messages in between. Settings are its defaults (clip at 8,
2^22 levels, modulus 2^32), all sites neighbours of each other, equal weights, nobody drops out.
"""

import importlib
import json
import sys
import time
from importlib.metadata import version

import numpy as np
from flwr.common import bytes_to_ndarray, ndarrays_to_parameters
from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from flwr.common.secure_aggregation.ndarrays_arithmetic import (
    factor_extract,
    get_parameters_shape,
    parameters_addition,
    parameters_mod,
    parameters_subtraction,
)
from flwr.common.secure_aggregation.quantization import dequantize
from flwr.common.secure_aggregation.secaggplus_constants import Key
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

# by its full name: the package has a function of the same name
site = importlib.import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")

CLIP, LEVELS, MODULUS, SAMPLES = 8.0, 1 << 22, 1 << 32, 100


class Clock:
    """Seconds by the wall and of the processor, added up."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0

    def __enter__(self) -> None:
        self._start = time.perf_counter(), time.process_time()

    def __exit__(self, *_: object) -> None:
        self.wall += time.perf_counter() - self._start[0]
        self.cpu += time.process_time() - self._start[1]


def timed(function, clock):
    """The function, its time counted apart."""

    def call(*arguments):
        with clock:
            return function(*arguments)

    return call


def main() -> None:
    values = np.load(sys.argv[1])
    count = len(values)
    states = {nid: site.SecAggPlusState(nid=nid) for nid in range(1, count + 1)}
    clocks = {nid: Clock() for nid in states}
    server, packing = Clock(), Clock()
    site.ndarray_to_bytes = timed(site.ndarray_to_bytes, packing)
    site.parameters_to_ndarrays = timed(site.parameters_to_ndarrays, packing)
    configs = {
        Key.SAMPLE_NUMBER: count,
        Key.SHARE_NUMBER: count,
        Key.THRESHOLD: count // 2 + 1,
        Key.CLIPPING_RANGE: CLIP,
        Key.TARGET_RANGE: LEVELS,
        Key.MOD_RANGE: MODULUS,
        Key.MAX_WEIGHT: float(SAMPLES),
    }
    keys = {}
    for nid, state in states.items():
        with clocks[nid]:
            answer = site._setup(state, configs)
        keys[str(nid)] = [answer[Key.PUBLIC_KEY_1], answer[Key.PUBLIC_KEY_2]]
    forwarded = {nid: ([], []) for nid in states}
    for nid, state in states.items():
        with clocks[nid]:
            answer = site._share_keys(state, keys)
        for to, text in zip(answer[Key.DESTINATION_LIST], answer[Key.CIPHERTEXT_LIST]):
            forwarded[to][0].append(nid)
            forwarded[to][1].append(text)
    total = None
    for nid, state in states.items():
        sources, texts = forwarded[nid]
        parameters = ndarrays_to_parameters([values[nid - 1]])
        asked = {Key.SOURCE_LIST: sources, Key.CIPHERTEXT_LIST: texts}
        with clocks[nid]:
            answer = site._collect_masked_vectors(state, asked, SAMPLES, parameters)
        with server:
            vector = [bytes_to_ndarray(b) for b in answer[Key.MASKED_PARAMETERS]]
            total = vector if total is None else parameters_addition(total, vector)
    sent = sum(len(b) for b in answer[Key.MASKED_PARAMETERS])
    shares = {nid: [] for nid in states}
    for nid, state in states.items():
        asked = {Key.ACTIVE_NODE_ID_LIST: list(states), Key.DEAD_NODE_ID_LIST: []}
        with clocks[nid]:
            answer = site._unmask(state, asked)
        for owner, share in zip(answer[Key.NODE_ID_LIST], answer[Key.SHARE_LIST]):
            shares[owner].append(share)
    with server:
        total = parameters_mod(total, MODULUS)
        for nid in states:
            seed = combine_shares(shares[nid])
            mask = pseudo_rand_gen(seed, MODULUS, get_parameters_shape(total))
            total = parameters_subtraction(total, mask)
        ratio, total = factor_extract(parameters_mod(total, MODULUS))
        (vector,) = dequantize(total, CLIP, LEVELS)
        vector += -(count - 1) * CLIP
        vector *= LEVELS / ratio  # the mean
    exact = values.astype(np.longdouble).sum(axis=0)
    found = {
        "version": version("flwr"),
        "site": {
            "wall": (sum(c.wall for c in clocks.values()) - packing.wall) / count,
            "cpu": (sum(c.cpu for c in clocks.values()) - packing.cpu) / count,
        },
        "site's bytes": {"wall": packing.wall / count, "cpu": packing.cpu / count},
        "coordinator": {"wall": server.wall, "cpu": server.cpu},
        "error": float(np.abs(vector * count - exact).max()),
        "bytes": sent,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
