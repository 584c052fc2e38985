"""`python -m cupola` is the command `cupola`."""

from cupola.cli.shell import main

if __name__ == "__main__":
    main()
