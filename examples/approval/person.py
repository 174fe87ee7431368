"""The person's side: python person.py STORE list | approve [COMMENT] | reject [COMMENT]"""

from __future__ import annotations

import sys

from stepfast import Stepfast


def main(store: str, verb: str = "list", comment: str | None = None) -> int:
    with Stepfast(store) as sf:
        if verb == "list":
            for decision in sf.decisions():
                print(f"{decision['run_id']}: {decision['question']} {decision['evidence']}")
            return 0
        outcome = {"approve": "approved", "reject": "rejected"}[verb]
        sf.answer("release-1.4", outcome, comment=comment, actor="maria")
        print(f"{outcome} release-1.4")
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
