"""``python -m adjoint``."""

import sys

from adjoint.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
