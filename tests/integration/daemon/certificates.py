"""Certificates for tests, made with the openssl program: a cluster's authority and what it signs."""

import datetime
import pathlib
import subprocess


def _openssl(*words: str, cwd: pathlib.Path) -> None:
    done = subprocess.run(
        ["openssl", *words], cwd=cwd, check=False, text=True, stderr=subprocess.PIPE
    )
    assert done.returncode == 0, f"openssl {' '.join(words)}: {done.stderr}"


class Authority:
    """A cluster's certificate authority in a folder of its own."""

    def __init__(self, folder: pathlib.Path, name: str = "cluster") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.ca = folder / "ca.pem"
        _openssl(
            *["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"],
            *["-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", f"/CN={name} CA"],
            cwd=folder,
        )

    def sign(self, name: str, *hosts: str, days: int = 1) -> list[str]:
        """Makes name.pem and name.key for `hosts` (addresses; none: the loopback); negative days: it has expired.

        Returns epd's flags."""
        alternatives = ",".join(f"IP:{host}" for host in hosts or ["127.0.0.1"])
        (self.folder / f"{name}.ext").write_text(
            f"subjectAltName={alternatives}\nextendedKeyUsage=serverAuth,clientAuth\n"
        )
        _openssl(
            *["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"],
            *["-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}"],
            cwd=self.folder,
        )
        _openssl(
            *["x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key"],
            *["-CAcreateserial", "-days", str(days), "-extfile", f"{name}.ext"],
            *["-out", f"{name}.pem"],
            cwd=self.folder,
        )
        return self.flags(name)

    def sign_for(self, name: str, since: int, left: int) -> list[str]:
        """As ``sign``, for the loopback, of a certificate that began ``since`` days ago and ends in ``left`` days."""
        self.sign(name)
        (self.folder / "ca.cnf").write_text(
            "[ca]\ndefault_ca=this\n[this]\ndatabase=index.txt\nunique_subject=no\nnew_certs_dir=.\n"
            "default_md=sha256\nrand_serial=yes\npolicy=any\n[any]\ncommonName=supplied\n"
        )
        (self.folder / "index.txt").touch()
        now = datetime.datetime.now(datetime.UTC)
        begins, ends = (
            f"{now + datetime.timedelta(days=days):%Y%m%d%H%M%SZ}" for days in (-since, left)
        )
        _openssl(
            *["ca", "-batch", "-config", "ca.cnf", "-cert", "ca.pem", "-keyfile", "ca.key"],
            *["-startdate", begins, "-enddate", ends, "-extfile", f"{name}.ext"],
            *["-in", f"{name}.csr", "-out", f"{name}.pem", "-notext"],
            cwd=self.folder,
        )
        return self.flags(name)

    def encrypt(self, name: str, traditional: bool = False) -> None:
        """Puts a pass phrase on name.key."""
        form = ["ec", "-aes256"] if traditional else ["pkcs8", "-topk8"]
        key = self.folder / f"{name}.key"
        _openssl(
            *form, "-in", key.name, "-out", "new.key", "-passout", "pass:secret", cwd=self.folder
        )
        (self.folder / "new.key").chmod(0o600)
        (self.folder / "new.key").replace(key)

    def flags(self, name: str) -> list[str]:
        return [
            f"--tls_ca={self.ca}",
            f"--tls_cert={self.folder / (name + '.pem')}",
            f"--tls_key={self.folder / (name + '.key')}",
            "--nodes=*",
        ]
