"""A probe with status 0 if the model of this container answers. Kubernetes' own probes cannot send a body.

It uses the id of `ts-stateful doctor`. In the sequence profile TorchServe keeps a place for every id, and ids from before a
worker's death hang for ever, as the sessions of that time do.
"""

import os
import sys
import urllib.request

port = sys.argv[1] if len(sys.argv) > 1 else "8080"
request = urllib.request.Request(
    f"http://127.0.0.1:{port}/predictions/{os.environ['MODEL']}",
    data=b'{"type":"hello"}',
    headers={
        "Content-Type": "application/json",
        os.environ.get("TS_HEADER_KEY_SEQUENCE_ID", "ts_request_sequence_id"): "ts-stateful-doctor",
    },
)
urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=15).close()
