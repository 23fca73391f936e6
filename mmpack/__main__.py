"""``python -m mmpack`` is ``mmpack``, for an interpreter whose scripts are not on the path."""

from __future__ import annotations

from mmpack.cli import main

if __name__ == "__main__":
    main()
