"""Pictures of many p-values, from few dots."""

import numpy as np
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from cupola.association.manhattan import _along_the_genome, _first_in_cells, largest, manhattan


@examples(max_examples=50, deadline=None)
@given(values=st.lists(st.integers(-5, 5), min_size=1, max_size=30), count=st.integers(1, 35))
def test_the_largest_are_those_of_a_stable_sort(values, count):
    array = np.array(values, float)
    assert largest(array, count).tolist() == np.argsort(-array, kind="stable")[:count].tolist()


def test_dots_in_one_cell_are_drawn_once_whatever_their_order():
    rng = np.random.default_rng(1)
    x, y = rng.uniform(0, 40, (2, 500))
    cells = (x // 2).astype(int) * 1000 + (y // 2).astype(int)
    assert set(_first_in_cells(x, y)) == set(np.unique(cells, return_index=True)[1])
    chromosome, position = rng.integers(1, 4, 500), rng.integers(1, 99, 500)
    order = np.lexsort((position, chromosome))
    assert (_along_the_genome(chromosome, position) == order).all()
    ready = _along_the_genome(chromosome[order], position[order])
    assert (ready == np.arange(500)).all()
    names = np.array([f"rs{i}" for i in range(500)])
    p = rng.random(500)
    facts = (-np.log10(p), names, [5e-8])
    drawn = manhattan(chromosome, position, *facts)
    shuffled = rng.permutation(500)
    again = manhattan(*(a[shuffled] for a in (chromosome, position, *facts[:2])), [5e-8])
    assert drawn.count("<circle") == again.count("<circle") == 2 * 200
    assert f"rs{int(np.argmin(p))}: " in drawn
