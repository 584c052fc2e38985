"""Joining a study of the web application from the machine that holds the data.

`server` speaks with it, `data` and `join` keep the party's own side of the agreement, `client` runs
its FLARE process. Used by `cupola site join`, `cupola compensator join` and `cupola site open`.
"""

from cupola.joining.join import Choice, Joining, begin, tell_left

__all__ = ["Choice", "Joining", "begin", "tell_left"]
