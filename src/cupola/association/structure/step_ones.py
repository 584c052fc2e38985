"""Whom a data set has made step one of whole-genome regression for, over all studies."""

from __future__ import annotations

import hashlib

import numpy as np

from cupola.association.cohort import Cohort
from cupola.federation.message import Declined
from cupola.secure.durable_dict import Memory


class StepOnes:
    """The book of whom whole-genome regression was made for, over all studies of a data set.

    Products of markers of two sets of people differ by those of the people in one of them: who is
    alone in it is told whole. So another study's people are the same, or many are others. study:
    whom it is opened for. trait: which. least: how many others are enough.
    """

    def __init__(self, memory: Memory, study: str, trait: str, least: int) -> None:
        self.memory, self._study, self._trait, self._least = memory, study, trait, least

    def charge(self, cohort: Cohort, people: np.ndarray) -> None:
        """Enter these people of the .fam file, durably; Declined if an earlier study's people or
        trait forbid it."""
        mine = sorted(_mark(cohort.person[i]) for i in people.tolist())
        entered = self.memory.listed("")
        for study, trait, theirs in entered:
            if study == self._study:
                if theirs != mine:
                    raise Declined("asked-otherwise-before")
                return
            if trait == self._trait and theirs == mine:
                raise Declined("step-one-made-before")
            if 0 < len(set(theirs) ^ set(mine)) < self._least:
                raise Declined("too-few-other-people")
        self.memory.setdefault(str(len(entered)), [self._study, self._trait, mine])

    def close(self) -> None:
        self.memory.close()


def _mark(person: str) -> str:
    return hashlib.blake2b(person.encode(), digest_size=8).hexdigest()
