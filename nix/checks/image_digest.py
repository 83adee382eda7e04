"""The image has the digest that the recorded layers give, and every blob is what its name says."""

import sys
from pathlib import Path

from torchlock.errors import TorchlockError
from torchlock.files import sha256_of
from torchlock.oci.layout import Layout
from torchlock.realize.image import DEFAULT_TAG
from torchlock.realize.image_documents import image_digest
from torchlock.realize.image_plan import image_source
from torchlock.repository import Repository

source, root = map(Path, sys.argv[1:])
try:
    expected = image_digest(image_source(Repository(source), "debian"))
    layout = Layout(root)
    named = layout.find(DEFAULT_TAG)
    manifest = layout.manifest(named)
except TorchlockError as error:
    sys.exit(str(error))
faults = []
if named["digest"] != expected:
    faults.append(f"{root} holds {named['digest']}, the recorded layers give {expected}")
blobs = {path.name for path in (root / "blobs" / "sha256").iterdir()}
blobs |= {
    row["digest"].removeprefix("sha256:") for row in (manifest["config"], *manifest["layers"])
}
for name in sorted(blobs):
    found = sha256_of(layout.blob(f"sha256:{name}"))
    if found != name:
        faults.append(f"sha256:{name} has contents of digest sha256:{found}")
if faults:
    sys.exit("\n".join(faults))
