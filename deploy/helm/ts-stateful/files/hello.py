"""`hello.py MODEL`: exit with 0 if the model at TorchServe answers."""

import sys
import urllib.error
import urllib.request

URL = "http://127.0.0.1:8080/predictions/"
HEADERS = {"Content-Type": "application/json"}


def main(model: str, url: str = URL) -> int:
    """Send `hello` to a model; return 0 if it answers, else 1."""
    request = urllib.request.Request(url + model, b'{"type": "hello"}', HEADERS)
    try:
        with urllib.request.urlopen(request, timeout=8):
            return 0
    except (OSError, urllib.error.URLError) as error:
        sys.stderr.write(f"{model}: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
