"""`python -m nextlong`."""

import sys

from nextlong.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
