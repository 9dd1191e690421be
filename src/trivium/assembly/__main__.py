"""`python -m trivium.assembly` is the engine process."""

from __future__ import annotations

import sys

from trivium.assembly.process import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
