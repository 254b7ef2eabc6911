"""Start the server: `python -m firsttoken.server --port 8000`; port 0 is any free one."""

import signal
import socket
import sys
from contextlib import suppress
from functools import partial

import uvicorn

from firsttoken.server.app import ServerSettings, create_app
from firsttoken.server.engine_client import EngineClient
from firsttoken.server.engine_process import engine_process
from firsttoken.server.options import make_engine, parser, tokenizer_of
from firsttoken.server.protocol import uvicorn_config


def main(arguments: list[str] | None = None) -> None:
    """Serve until a signal comes; then finish what is under way."""
    read = parser()
    options = read.parse_args(arguments)
    is_v6 = ":" in options.host
    try:
        # The port is ours from here on. A client that connects early waits until the engine runs.
        listening = socket.create_server(
            (options.host, options.port), family=socket.AF_INET6 if is_v6 else socket.AF_INET
        )
    except OSError as error:
        sys.exit(f"cannot listen to {options.host}, port {options.port}: {error.strerror}")
    settings = ServerSettings(options.served_model_name, options.api_key, options.max_body_bytes)
    with listening, engine_process(partial(make_engine, options)) as connection:
        try:
            tokenizer = tokenizer_of(options)
            engine = EngineClient(connection)
        except ValueError as error:
            read.error(str(error))
        except ChildProcessError as error:
            sys.exit(f"the engine did not start: {error}")
        if options.host not in ("127.0.0.1", "::1", "localhost") and options.api_key is None:
            print("Anybody who reaches this machine may ask: no --api-key is set.", file=sys.stderr)
        app = create_app(engine, tokenizer, settings)
        host = f"[{options.host}]" if is_v6 else options.host
        port = listening.getsockname()[1]
        with suppress(OSError):  # a log on a full disk: who asks is answered all the same
            print(f"Dashboard: http://{host}:{port}/ . Ctrl-C stops the server.", flush=True)
        config = uvicorn_config(
            app,
            log_level="warning",
            timeout_keep_alive=options.idle_s,
            timeout_graceful_shutdown=options.drain_s,
        )
        # When its last answer is sent, uvicorn raises the signal again. That must not end this
        # program before the engine's process has ended.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: sys.exit())
        uvicorn.Server(config).run([listening])


if __name__ == "__main__":
    main()
