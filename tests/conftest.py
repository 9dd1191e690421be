"""What all tests share: engines that ask for nothing else run the reference executor, which every machine has.

System tests run what users get (see `system/conftest.py`); suites of the native kernels (laws, goldens, units) name
their executor.
"""

from __future__ import annotations

import os

os.environ.setdefault("TRIVIUM_EXECUTOR", "reference")
