"""A picture of what a terminal shows: `make_picture.py TITLE OUT.svg < captured output`.

The text is real output, captured with `script` or a pipe; nothing is typed by hand.
"""

import io
import sys

from rich.console import Console
from rich.text import Text

title, target = sys.argv[1:]
text = sys.stdin.read()
width = max(len(line) for line in text.splitlines())
console = Console(record=True, width=width, file=io.StringIO())
console.print(Text(text.rstrip()), soft_wrap=True)
console.save_svg(target, title=title)
