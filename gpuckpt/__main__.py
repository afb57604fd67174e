"""Lets `python -m gpuckpt` run the command line."""

from gpuckpt.cli.main import main

if __name__ == "__main__":
    main()
