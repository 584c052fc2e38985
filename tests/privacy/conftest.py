"""Fixtures of the tests of privacy."""

import pytest

from cupola.privacy.persample import convolution


@pytest.fixture
def small_layers_count_as_large(monkeypatch):
    monkeypatch.setattr(convolution, "NUMBERS", 700)
