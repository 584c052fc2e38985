"""The mixed model as a textbook has it, over people in one place: matrices of people by people."""

import numpy as np

X, Y, MT = 23, 24, 26


def genotypes(data):
    """(variants, people): copies as PLINK counts them, NaN without a call, centred by ploidy times
    the allele's frequency over all people; 0 without a call. And who has a call."""
    copies = np.where(data.copies == 3, np.nan, data.copies.astype(float))
    chromosome, male = data.variants.chromosome, data.sex == 1
    single = np.isin(chromosome, (MT,))[:, None] | (
        np.isin(chromosome, (X, Y))[:, None] & male[None]
    )
    copies[(chromosome == Y)[:, None] & ~male[None]] = np.nan
    copies[single & (copies == 1)] = np.nan
    ploidy = np.where(single, 1.0, 2.0)
    dose = copies * ploidy / 2
    called = ~np.isnan(copies)
    frequency = np.nansum(dose, axis=1) / (ploidy * called).sum(axis=1)
    return np.where(called, dose - ploidy * frequency[:, None], 0.0), called, frequency


def mixed(data, choice, heritability, exact, sex_on_x=True):
    """BETA, SE, people with a call of every variant. exact: solve by LAPACK, else by conjugate
    gradients until all residuals are below the choice's tolerance."""
    x, called, frequency = genotypes(data)
    chromosome = data.variants.chromosome.astype(int)
    told = ~np.isnan(data.qt) & ~np.isnan(data.age) & ~np.isnan(data.dose) & (data.sex > 0)
    y = data.qt[told]
    width, y = y.std(), (y - y.mean()) / y.std()
    z = np.column_stack([np.ones(told.sum()), data.age[told], data.dose[told]])
    n, p = z.shape
    minor = np.minimum(frequency, 1 - frequency)
    marker = np.flatnonzero((chromosome <= 22) & (minor >= choice.maf))
    wide = x[marker][:, told].T
    wide = wide / np.sqrt((wide**2).mean(axis=0))
    group = chromosome[marker] % choice.groups
    common = np.flatnonzero(minor[marker] >= 0.2)
    common = common if len(common) >= choice.calibration else np.arange(len(marker))
    count = min(choice.calibration, len(common))
    pick = common[(2 * np.arange(count) + 1) * len(common) // (2 * count)]
    groups = [*np.unique(group).tolist(), -1]
    left = [*groups, *group[pick].tolist()]
    outside = np.eye(n) - z @ np.linalg.solve(z.T @ z, z.T)
    b = outside @ np.column_stack([np.tile(y[:, None], len(groups)), wide[:, pick]])
    v = []
    for one in left:
        some = outside @ wide[:, group != one]
        v.append(heritability * some @ some.T / some.shape[1] + (1 - heritability) * np.eye(n))
    if exact:
        u = np.column_stack([np.linalg.solve(m, c) for m, c in zip(v, b.T)])
    else:
        u = gradients(v, b, choice.tolerance)
    variance = (b * u).sum(axis=0)[: len(groups)] / (n - p)
    gamma = ((b * u).sum(axis=0) / (b * b).sum(axis=0))[len(groups) :].mean()
    beta, error = np.empty(len(x)), np.empty(len(x))
    for j, c in enumerate(chromosome):
        k = groups.index(c % choice.groups) if c <= 22 and c % choice.groups in groups else -1
        k = k if k >= 0 else len(groups) - 1
        male = data.sex[told] == 1
        who = male if c == Y else np.ones(n, bool)
        columns = np.column_stack([z, male])[who] if c == X and sex_on_x else z[who]
        own, solution = x[j, told][who], u[who, k]
        own = own - columns @ np.linalg.lstsq(columns, own, rcond=None)[0]
        beta[j] = own @ solution / (gamma * (own @ own)) * width
        error[j] = np.sqrt(variance[k] / (gamma * (own @ own))) * width
    return beta, error, (called & told).sum(axis=1)


def gradients(v, b, tolerance):
    u, r, d = np.zeros_like(b), b.copy(), b.copy()
    rr = start = (r * r).sum(axis=0)
    while True:
        q = np.column_stack([m @ c for m, c in zip(v, d.T)])
        alpha = rr / (d * q).sum(axis=0)
        u, r = u + alpha * d, r - alpha * q
        new = (r * r).sum(axis=0)
        if (new <= tolerance**2 * start).all():
            return u
        d, rr = r + new / rr * d, new
