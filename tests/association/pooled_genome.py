"""Whole-genome regression the textbook's way, on everybody's numbers in one place: LAPACK, whole
matrices, residuals in place of products. Shares no code with the package."""

import numpy as np


def out_of(z, a):
    """What columns z leave of columns a."""
    return a - z @ np.linalg.lstsq(z, a, rcond=None)[0]


def blocks(chromosome, most):
    return [
        part
        for c in np.unique(chromosome)
        for where in [np.flatnonzero(chromosome == c)]
        for part in _even(where, -(-len(where) // most))
    ]


def _even(where, count):
    return [where[len(where) * i // count : len(where) * (i + 1) // count] for i in range(count)]


def ridge(a, b, penalty):
    return np.linalg.solve(a + penalty * np.eye(len(a)), b)


def by_fold(columns, fold, coefficients):
    found = np.empty(len(columns))
    for k, beta in enumerate(coefficients):
        found[fold == k] = columns[fold == k] @ beta
    return found


def predictions(x, chromosome, z, y, fold, whole, most):
    """Of everybody: chromosome (0: none left out) -> prediction."""
    y = out_of(z, y[:, None])[:, 0]
    kept = out_of(z, x)
    k = whole.folds
    penalty = x.shape[1] * (1 - whole.heritability) / whole.heritability
    columns, of = [], []
    for block in blocks(chromosome, most):
        d = kept[:, block] / np.sqrt((kept[:, block] ** 2).sum(0) / (len(y) - z.shape[1]))
        gram = d.T @ d * (k - 1) / k
        beta = [ridge(gram, d[fold != i].T @ y[fold != i], penalty) for i in range(k)]
        columns.append(by_fold(d, fold, beta))
        of.append(chromosome[block[0]])
    w, of = np.column_stack(columns), np.array(of)
    w = (w - w.mean(0)) / w.std(0)
    errors, weights = [], []
    for share in whole.stacked:
        penalty = w.shape[1] * (1 - share) / share
        others = [(w[fold != i], y[fold != i]) for i in range(k)]
        beta = [ridge(a.T @ a, a.T @ b, penalty) for a, b in others]
        errors.append(((y - by_fold(w, fold, beta)) ** 2).sum())
        weights.append(beta)
    best = weights[int(np.argmin(errors))]
    return {c: by_fold(w * (of != c), fold, best) for c in (0, *np.unique(of))}


def regression(columns, y, logistic):
    """Coefficient and standard error of the last column."""
    n, p = columns.shape
    if not logistic:
        beta, rest = np.linalg.lstsq(columns, y, rcond=None)[:2]
        inverse = np.linalg.inv(columns.T @ columns)
        return beta[-1], np.sqrt(rest[0] / (n - p) * inverse[-1, -1])
    beta = np.zeros(p)
    for _ in range(30):
        mu = 1 / (1 + np.exp(-columns @ beta))
        inverse = np.linalg.inv((columns.T * (mu * (1 - mu))) @ columns)
        step = inverse @ (columns.T @ (y - mu))
        beta += step
        if np.abs(beta).max() > 30:
            return np.nan, np.nan
    return beta[-1], np.sqrt(inverse[-1, -1])


def _columns(data, logistic):
    y = data.cc - 1 if logistic else (data.qt - data.qt.mean()) / data.qt.std()
    covariates = np.column_stack([data.age, data.dose])
    standard = (covariates - covariates.mean(0)) / covariates.std(0)
    return np.column_stack([np.ones(len(y)), standard]), y


def pooled_predictions(data, study, fold):
    """Of everybody tested, by the chromosome left out (0: none)."""
    whole = study.whole_genome
    z, y = _columns(data, study.test == "logistic")
    copies, chromosome, told = data.copies, data.variants.chromosome, data.copies != 3
    rate = np.where(told, copies, 0).sum(1) / (2 * told.sum(1))
    markers = (chromosome <= 22) & (np.minimum(rate, 1 - rate) >= whole.maf)
    x = np.where(told, copies - 2 * rate[:, None], 0.0)[markers].T
    return predictions(x, chromosome[markers], z, y, fold, whole, whole.block)


def pooled(data, study, fold):
    """beta and standard error of every variant, of the minor allele."""
    logistic = study.test == "logistic"
    copies, chromosome, told = data.copies, data.variants.chromosome, data.copies != 3
    z, y = _columns(data, logistic)
    found = pooled_predictions(data, study, fold)
    male = data.sex == 1
    betas, errors = [], []
    for g, c, ok in zip(copies, chromosome, told):
        who = ok & (male if c == 24 else True)
        single = np.full(len(y), c == 26) | (male if c in (23, 24) else False)
        if c in (23, 24, 26):
            who &= ~(single & (g == 1))
        prediction = found[c] if c in found else found[0]
        columns = [z, (prediction / prediction.std())[:, None]]
        if c == 23:
            columns.append(male[:, None].astype(float))
        columns.append((g * np.where(single, 0.5, 1.0))[:, None])
        beta, error = regression(np.hstack(columns)[who], y[who], logistic)
        n1 = (np.where(who, g, 0) * np.where(single, 0.5, 1)).sum()
        n2 = (np.where(who, 2 - g, 0) * np.where(single, 0.5, 1)).sum()
        betas.append(-beta if n1 > n2 else beta)
        errors.append(error)
    scale = 1.0 if logistic else data.qt.std()
    return np.array(betas) * scale, np.array(errors) * scale
