"""The command `nsm`, and ``python -m nsm``: Ctrl-C waits until the command line is loaded."""

import signal
import sys


def main() -> int:
    """Load the command line and run it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # some modules that load swallow it half way
    from nsm.cli import main as run

    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    except KeyboardInterrupt:
        print("nsm: interrupted", file=sys.stderr)
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
