"""Errors that reach a person: one line that names what they wrote and the way out."""


class CupolaError(Exception):
    """Base of every error Cupola raises on purpose; the command line prints it in one line."""


class PlanError(CupolaError):
    """A plan, or a setting on the command line, that cannot be carried out."""


class DataError(CupolaError):
    """A data set, file or partition that cannot be used."""


class FederationError(CupolaError):
    """The federation could not answer: too few sites, ill-formed answers, dead engine."""
