"""`python -m reproduce NAME`, in the folder experiments: the command `cupola reproduce NAME`."""

import sys

from cupola.cli import main

sys.argv.insert(1, "reproduce")
main()
