"""asv's environment "this": the Python that runs asv, with this checkout, under a name that is the same everywhere.

asv's own "existing" takes its name from the path of the interpreter, which would tell of the machine in files that are
kept; and it forgets PYTHONPATH, so that gsparse would have to be installed.
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
        # (what the caller's PYTHONPATH names comes first: another commit's checkout, say)
        path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(CHECKOUT))))
        env = kwargs.pop("env", os.environ) | {"PYTHONPATH": path, "ASV_PYTHONPATH": path}
        return super().run(args, env=env, **kwargs)
