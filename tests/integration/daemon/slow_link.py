"""A TCP link whose connections take a while to say their first word, as over TLS between busy machines."""

import contextlib
import socket
import threading
import time


class SlowLink:
    """Forwards to `target` (host:port); what `target` says first on a connection comes `delay` seconds later."""

    def __init__(self, target: str, delay: float) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._delay = delay
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> "SlowLink":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                threading.Thread(target=_forward, args=(near, far, 0), daemon=True).start()
                args = (far, near, self._delay)
                threading.Thread(target=_forward, args=args, daemon=True).start()


def _forward(source: socket.socket, to: socket.socket, delay: float) -> None:
    with source, to, contextlib.suppress(OSError):
        while data := source.recv(65536):
            time.sleep(delay)
            delay = 0
            to.sendall(data)
