"""A picture of what a terminal shows: `make_picture.py TITLE OUT.svg < captured output`.

The text is real output, captured with `script` or a pipe; nothing is typed by hand.
"""

import io
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

title, target = sys.argv[1:]
text = sys.stdin.read()
width = max(len(line) for line in text.splitlines())
console = Console(record=True, width=width, file=io.StringIO())
console.print(Text(text.rstrip()), soft_wrap=True)
svg = console.export_svg(title=title)
# A picture must not load fonts from somewhere: any monospaced one will do.
svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
svg = svg.replace("Fira Code", "DejaVu Sans Mono")
Path(target).write_text(svg)
