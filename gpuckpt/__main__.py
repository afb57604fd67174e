"""Lets `python -m gpuckpt` run the command line."""

from gpuckpt.cli.start import main

if __name__ == "__main__":
    main()
