"""The secret of the tests' clusters, and how somebody who is no epd proves to know it (daemon/rpc/cluster/link_proof.h)."""

import atexit
import functools
import hashlib
import hmac
import os
import pathlib
import tempfile

SECRET = b"what the nodes of a test's cluster share"


def flags() -> list[str]:
    """Of an epd whose links are not TLS, also on addresses that are no loopback."""
    return [f"--cluster_secret={_file()}", "--insecure=yes"]


@functools.cache
def _file() -> pathlib.Path:
    folder = tempfile.TemporaryDirectory(prefix="epd-secret-")
    atexit.register(folder.cleanup)
    path = pathlib.Path(folder.name) / "cluster-secret"
    path.touch(mode=0o600)
    path.write_bytes(SECRET)
    return path


def _proof(*parts: bytes) -> bytes:
    text = b"".join(b"%d:%s" % (len(part), part) for part in parts)
    return hmac.new(SECRET, text, hashlib.sha256).digest()


def answer(pb, request):
    """What a coordinator answers to Challenge."""
    challenge = os.urandom(40)
    proof = _proof(b"answers", request.node.encode(), request.nonce, challenge)
    return pb.ChallengeResponse(challenge=challenge, proof=proof)


def metadata(pb, channel, node: str) -> tuple[tuple[str, bytes]]:
    """What a node that calls over `channel` says with its calls."""
    challenge = channel.unary_unary(
        "/epd.v1.Cluster/Challenge",
        request_serializer=pb.ChallengeRequest.SerializeToString,
        response_deserializer=pb.ChallengeResponse.FromString,
    )
    nonce = os.urandom(32)
    said = challenge(pb.ChallengeRequest(node=node, nonce=nonce), timeout=10)
    assert said.proof == _proof(b"answers", node.encode(), nonce, said.challenge)
    own = _proof(b"calls", node.encode(), nonce, said.challenge)
    proof = pb.NodeProof(node=node, nonce=nonce, challenge=said.challenge, proof=own)
    return (("epd-node-bin", proof.SerializeToString()),)
