"""``python -m sci_stream`` is ``sci-stream``."""

from sci_stream.cli import main

if __name__ == "__main__":
    main()
