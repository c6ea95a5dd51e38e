"""A probe: ends with status 0 if the model of this container answers. Kubernetes' own probes cannot send a body."""

import os
import sys
import urllib.request

port = sys.argv[1] if len(sys.argv) > 1 else "8080"
request = urllib.request.Request(
    f"http://127.0.0.1:{port}/predictions/{os.environ['MODEL']}",
    data=b'{"type":"hello"}',
    headers={"Content-Type": "application/json"},
)
urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=15).close()
