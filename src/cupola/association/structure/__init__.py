"""Population structure and relatives by sums: what all markers of a genome together say of people.

A *marker* is a variant that takes part in this, whether it is tested or not: on an autosome, common
enough, with its own place. What cohorts compute on markers starts from `centred.Centred`, how they
are chosen and told from `markers.Markers`.
"""
