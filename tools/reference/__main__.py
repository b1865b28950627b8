"""`python -m tools.reference` writes every generated block of the documentation; with `--check` it writes nothing, and
fails if a block is out of date.
"""

import sys

from tools.reference.pages import PAGES, updated

if __name__ == "__main__":
    outdated = []
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        after = updated(page, before)
        if after == before:
            continue
        outdated.append(page.name)
        if "--check" not in sys.argv:
            page.write_text(after, encoding="utf-8")
            print(f"updated {page.name}")
    if outdated and "--check" in sys.argv:
        sys.exit(f"out of date: {', '.join(outdated)}; run `make reference`")
