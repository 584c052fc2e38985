import os
from pathlib import Path

# Site processes import the hosts of small.py by name.
HERE = str(Path(__file__).parent)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH")]))
