"""`python -I -S report.py FOLDER ...`: writes what this process really got to FOLDER/<rank>.json.

Only the standard library, and nothing of hpc-amp: it stands for a user's training script. Bytes
that are not UTF-8 appear as Python's surrogate escapes.
"""

import json
import os
import sys

folder = sys.argv[1]
os.makedirs(folder, exist_ok=True)
rank = os.environ["RANK"]
with open(os.path.join(folder, f"{rank}.json"), "x", encoding="ascii") as out:
    json.dump({"argv": sys.argv[2:], "environ": dict(os.environ), "cwd": os.getcwd()}, out)
