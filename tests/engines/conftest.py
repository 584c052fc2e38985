import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
PLACES = [str(HERE), str(HERE.parent / "federation")]  # there are hosts.py and its tasks
sys.path[:0] = PLACES
# Site processes import them by name.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*PLACES, os.environ.get("PYTHONPATH")]))
