"""Signs certificates and verifies them, in OpenSSH's own signature format (ssh-keygen -Y)."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from validation import canonical
from validation.outcome import DOES_NOT_HOLD, EXIT_CODES, HOLDS, NOT_JUDGED, ValidationError

# Keeps a signature made here from being taken for one made for another purpose.
NAMESPACE = "torchlock-certificate"


class BadSignatureError(ValidationError):
    """The signature does not fit the file, or nobody in the list of signers made it."""


def sign(path: Path, key: Path) -> Path:
    """Signs `path` with an OpenSSH private key (or a public one whose agent holds the other).

    Returns the signature, `path` with ".sig" added. Raises ValidationError.
    """
    signature = path.with_name(path.name + ".sig")
    if not path.is_file():
        raise ValidationError(f"there is no certificate {path}")
    if not key.is_file():
        raise ValidationError(f"there is no key {key}", hint="ssh-keygen -t ed25519 -f KEY")
    # From standard input to standard output: an older signature stays until there is a new one.
    done = _ssh_keygen(["-Y", "sign", "-f", str(key), "-n", NAMESPACE], path.read_bytes())
    if done.returncode or not done.stdout:
        raise ValidationError(f"{path} could not be signed with {key}: {_reason(done)}")
    canonical.write_whole(signature, done.stdout)
    return signature


def verify(path: Path, signers: Path, signature: Path | None = None) -> str:
    """The identity, among the allowed `signers`, that signed `path`.

    `signers` is a file in OpenSSH's format ALLOWED SIGNERS (ssh-keygen(1)): lines "IDENTITY
    KEYTYPE KEY". Raises BadSignatureError when it does not hold, ValidationError when it cannot
    be judged.
    """
    signature = signature or path.with_name(path.name + ".sig")
    for needed, what in ((path, "certificate"), (signature, "signature"), (signers, "signers")):
        if not needed.is_file():
            raise ValidationError(f"there is no {what} {needed}")
    common = ["-f", str(signers), "-n", NAMESPACE, "-s", str(signature)]
    found = _ssh_keygen(["-Y", "find-principals", *common])
    names = found.stdout.decode("utf-8", "replace").splitlines()
    if found.returncode or not names:
        raise BadSignatureError(f"nobody in {signers} signed {path}: {_reason(found)}")
    checked = _ssh_keygen(["-Y", "verify", "-I", names[0], *common], path.read_bytes())
    if checked.returncode:
        raise BadSignatureError(f"the signature of {path} is not good: {_reason(checked)}")
    return names[0]


def _ssh_keygen(
    arguments: Sequence[str], content: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            ["ssh-keygen", *arguments], input=content, capture_output=True, check=False
        )
    except FileNotFoundError as error:
        raise ValidationError(
            "there is no ssh-keygen on this machine", hint="apt-get install openssh-client"
        ) from error


def _reason(done: subprocess.CompletedProcess[bytes]) -> str:
    said = (done.stderr or done.stdout).decode("utf-8", "replace").strip().splitlines()
    return said[-1] if said else f"ssh-keygen ended with {done.returncode}"


def main(arguments: Sequence[str]) -> int:
    """`sign CERTIFICATE --key KEY` or `verify CERTIFICATE --signers FILE`; the exit code.

    `verify --json FILE` writes verdict, signer ("" if none) and evidence as canonical JSON.
    """
    options = argparse.ArgumentParser(prog="sign", description=__doc__)
    verbs = options.add_subparsers(dest="verb", required=True)
    signing, verifying = verbs.add_parser("sign"), verbs.add_parser("verify")
    signing.add_argument("certificate", type=Path)
    signing.add_argument("--key", type=Path, required=True)
    verifying.add_argument("certificate", type=Path)
    verifying.add_argument("--signers", type=Path, required=True)
    verifying.add_argument("--signature", type=Path)
    verifying.add_argument("--json", metavar="FILE", help="the verdict; - for standard output")
    chosen = options.parse_args(arguments)
    try:
        if chosen.verb == "verify":
            return _verify(chosen)
        print(f"signed: {sign(chosen.certificate, chosen.key)}")  # noqa: T201
    except ValidationError as fault:
        print(fault, file=sys.stderr)  # noqa: T201
        return EXIT_CODES[NOT_JUDGED]
    return EXIT_CODES[HOLDS]


def _verify(chosen: argparse.Namespace) -> int:
    verdict, name = HOLDS, ""
    try:
        name = verify(chosen.certificate, chosen.signers, chosen.signature)
        said = f"{chosen.certificate} was signed by {name}"
    except ValidationError as fault:
        verdict = DOES_NOT_HOLD if isinstance(fault, BadSignatureError) else NOT_JUDGED
        said = str(fault)
    aside = verdict != HOLDS or chosen.json == "-"
    print(said, file=sys.stderr if aside else sys.stdout)
    if chosen.json:
        canonical.write(chosen.json, {"verdict": verdict, "signer": name, "evidence": said})
    return EXIT_CODES[verdict]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
