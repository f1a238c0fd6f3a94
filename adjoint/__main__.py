"""``python -m adjoint``."""

import sys

from adjoint.cli.main import main

sys.exit(main())
