"""`python -m nextlong`."""

import sys

from nextlong.cli import main

if __name__ == "__main__":
    sys.exit(main())
