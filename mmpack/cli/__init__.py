"""The command line. Every command: a bad request is one line and exit code 2, success is 0; ``--debug`` shows more."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Entry point of ``mmpack``."""
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    # Nothing here fetches from a hub; without this, transformers would try, and warn that it cannot.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

    from mmpack.cli.app import app
    from mmpack.errors import ConfigError, MmpackError

    try:
        app(args=arguments, prog_name="mmpack")
    except MmpackError as error:
        if debug:
            raise
        print(f"mmpack: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, ConfigError) else 1)
    except KeyboardInterrupt:
        print("mmpack: stopped", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output has gone; that is its business. Keep the interpreter from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        if debug:
            raise
        where = f"{error.filename}: " if error.filename else ""
        print(f"mmpack: {where}{error.strerror or error}; choose another path, or free the space", file=sys.stderr)
        sys.exit(2 if error.filename else 1)
    except Exception as error:
        if debug:
            raise
        said = " ".join(str(error).split()) or "no message"
        print(f"mmpack: {type(error).__name__}: {said} (unexpected; --debug shows where)", file=sys.stderr)
        sys.exit(1)
