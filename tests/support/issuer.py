"""An issuer of signed tokens with keys of its own."""

from __future__ import annotations

import json
import time
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

__all__ = ["AUDIENCE", "ISSUER", "Issuer", "key_set"]

ISSUER, AUDIENCE = "https://issuer.example", "chat"


class Issuer:
    """Signs tokens with one key; `algorithm` is ES256, EdDSA or an RSA one."""

    def __init__(
        self, key_id: str | None = "1", algorithm: str = "ES256", bits: int = 2048
    ) -> None:
        self.key_id = key_id
        self.algorithm = algorithm
        kind: Any
        if algorithm == "EdDSA":
            self.key: Any = ed25519.Ed25519PrivateKey.generate()
            kind = OKPAlgorithm
        elif algorithm == "ES256":
            self.key = ec.generate_private_key(ec.SECP256R1())
            kind = ECAlgorithm
        else:
            self.key = rsa.generate_private_key(65537, bits)
            kind = RSAAlgorithm
        public = json.loads(kind.to_jwk(self.key.public_key()))
        self.jwk: dict[str, Any] = {**public, "alg": algorithm, "use": "sig"}
        if key_id is not None:
            self.jwk["kid"] = key_id

    @property
    def key_set(self) -> bytes:
        """The JSON document with the public key."""
        return key_set(self.jwk)

    def token(self, principal: Any, *, life_s: float = 600, **claims: Any) -> str:
        """Sign a token; a claim of None is left out."""
        now = int(time.time())
        made = {"sub": principal, "iss": ISSUER, "aud": AUDIENCE, "exp": now + life_s, **claims}
        made = {name: value for name, value in made.items() if value is not None}
        headers = None if self.key_id is None else {"kid": self.key_id}
        return jwt.encode(made, self.key, self.algorithm, headers)


def key_set(*keys: dict[str, Any]) -> bytes:
    """Write a key set."""
    return json.dumps({"keys": keys}).encode()
