"""What all tests share: servers and engines that ask for nothing else run the reference executor.

Many cases need an engine that is slow enough to be stopped in the middle of an answer. Native kernels have suites of
their own (laws, goldens, units), which name their executor.
"""

from __future__ import annotations

import os

os.environ.setdefault("TRIVIUM_EXECUTOR", "reference")
