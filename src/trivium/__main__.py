"""`python -m trivium` is the `trivium` command."""

import sys

from trivium.cli import main

sys.exit(main())
