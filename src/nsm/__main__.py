"""The command `nsm`, and ``python -m nsm``: Ctrl-C is heard while the rest is still being loaded."""

import sys


def main() -> int:
    """Load the command line and run it."""
    try:
        from nsm.cli import main as run
    except KeyboardInterrupt:
        print("nsm: interrupted", file=sys.stderr)
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
