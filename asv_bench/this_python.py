"""asv's environment "this": the Python that runs asv, with this checkout, and the same name on every machine.

asv's own environment "existing" is named after the interpreter's path, so committed results would contain a path of the
machine. It also drops PYTHONPATH, so gsparse would have to be installed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from asv.environment import ExistingEnvironment

CHECKOUT = Path(__file__).resolve().parents[1]


class ThisPython(ExistingEnvironment):
    tool_name = "this"
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    name = f"this-py{python}"

    def run(self, args, **kwargs):
        # The caller's PYTHONPATH comes first. It may name the checkout of another commit.
        path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(CHECKOUT))))
        env = kwargs.pop("env", os.environ) | {"PYTHONPATH": path, "ASV_PYTHONPATH": path}
        return super().run(args, env=env, **kwargs)
