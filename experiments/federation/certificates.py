"""Certificates and keys of the engine: an authority, the server's, and one key per node."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAYS = 30


@dataclass(frozen=True)
class Authority:
    """The authority that signs the server's certificate; its own certificate is `ca.crt` in
    `folder`.
    """

    folder: Path
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def new(cls, folder: Path) -> Authority:
        """Returns a new authority with its certificate in `folder`; its key is not written."""
        key, name = _fresh(), _name("privfed loop-back authority")
        certificate = (
            _builder(name, name, key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .sign(key, hashes.SHA384())
        )
        authority = cls(folder, key, certificate)
        authority.root.write_bytes(certificate.public_bytes(Encoding.PEM))
        return authority

    @property
    def root(self) -> Path:
        """The certificate by which others verify the server."""
        return self.folder / "ca.crt"

    def certify_server(self) -> tuple[Path, Path]:
        """Returns files with a certificate of this machine and its key."""
        key = _fresh()
        here = x509.SubjectAlternativeName(
            [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        )
        certificate = (
            _builder(_name("localhost"), self.certificate.subject, key.public_key())
            .add_extension(here, critical=False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .sign(self.key, hashes.SHA384())
        )
        paths = self.folder / "server.pem", self.folder / "server.key"
        paths[0].write_bytes(certificate.public_bytes(Encoding.PEM))
        _write_secret(paths[1], key, PrivateFormat.PKCS8)
        return paths


def node_key(folder: Path, name: str) -> Path:
    """Returns the file of a new key of a node in OpenSSH format, next to its public half
    (`.pub`).
    """
    key, path = _fresh(), folder / f"{name}.node"
    _write_secret(path, key, PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    path.with_name(f"{path.name}.pub").write_bytes(public + b"\n")
    return path


def _fresh() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _write_secret(path: Path, key: ec.EllipticCurvePrivateKey, form: PrivateFormat) -> None:
    path.touch(0o600)
    path.write_bytes(key.private_bytes(Encoding.PEM, form, NoEncryption()))
