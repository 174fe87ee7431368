"""``python -m stepfast`` is the command line."""

from stepfast.cli import main

if __name__ == "__main__":
    main()
