"""A session that survives the restart of its server, because its log is in a bucket.

    pip install 'torchserve-stateful[server,s3]'
    python examples/s3_store.py 's3://my-bucket/sessions?region=eu-central-1'

Credentials come from the usual places of AWS's programs. Without an account, a server of S3's protocol on this machine does:

    pip install 'moto[s3,server]'
    moto_server --port 9000 &
    curl -X PUT http://127.0.0.1:9000/trial
    export AWS_ACCESS_KEY_ID=trial AWS_SECRET_ACCESS_KEY=trial
    python examples/s3_store.py 's3://trial/sessions?region=us-east-1&endpoint_url=http://127.0.0.1:9000'
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from ts_stateful.asgi.supervisor import AsgiServer, AsgiServerSettings
from ts_stateful.client import connect

SHAPES = Path(__file__).resolve().parent / "shapes"
# The same lines belong into the model-config.yaml of a server that is started by a command.
CONFIG = """\
maxNumSequence: 256
handler:
  store:
    url: {store}
    policy: required  # a turn is answered after the bucket has it
    timeoutSec: 10
"""


def main() -> None:
    """Open a session, stop the server, start another one, and go on."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("store", help="s3://<bucket>/<prefix>?region=..., see docs/store.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "model-config.yaml")
        config.write_text(CONFIG.format(store=options.store))
        print(config.read_text())
        # On free ports. `ts-stateful serve examples/shapes/model --config model-config.yaml` is the same as a command.
        settings = AsgiServerSettings((str(SHAPES / "model"),), config=config)

        with AsgiServer(settings) as server, connect(server.grpc_url) as client:
            session = client.open(images=[SHAPES / "scene.png"])
            print("What color is the circle?", session.ask("What color is the circle?"))
        print(f"the server has stopped, session {session.session_id} has not ended")

        with AsgiServer(settings) as server, connect(server.grpc_url) as client:
            session = client.attach(session.session_id)  # read from the bucket
            print("And the square?", session.ask("And the square?"))
            print("turns:", session.info().turns)
            session.close()  # the bucket keeps nothing but the mark of its end


if __name__ == "__main__":
    main()
