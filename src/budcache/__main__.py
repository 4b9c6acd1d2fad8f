"""`python -m budcache`: the command line, also where its folder is not on the path."""

from budcache.cli import main

if __name__ == "__main__":
    main()
